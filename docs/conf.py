"""The settings of the site: `make docs` builds it into docs/_build/html, without a network."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "Rekindle"
author = "The Rekindle contributors"
project_copyright = author
version = release = installed_version("rekindle")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "api_pages",
    "docstring_links",
]
exclude_patterns = ["_build"]
nitpicky = True
# What a signature names beyond our own classes is documented elsewhere, and nothing is fetched to link to it.
nitpick_ignore_regex = [("py:.*", r"(?!rekindle\.).*")]

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.strikethrough"]

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"
maximum_signature_line_length = 88

html_theme = "furo"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_title = "Rekindle"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#b3390b", "color-brand-content": "#a8360b"},
    "dark_css_variables": {"color-brand-primary": "#ff9a6b", "color-brand-content": "#ff9a6b"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
