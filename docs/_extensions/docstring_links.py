"""Links every public name that is written as code, in docstrings and in the guides, to the API reference.

The guides stay plain Markdown: `rk.Refurbish(factor=3)` between backticks is a link on the site and code on a
code host. A name behind `rk.` that is not public is a warning, so the guides cannot name what is not there.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from public_names import claims_to_be_public, documented_as

_CODE = re.compile(r"(?<![`:\w])`([^`\n]+(?:\n[^`\n]+)?)`(?![`_])")
_LINKED_ALREADY = (nodes.reference, addnodes.pending_xref, nodes.title)
logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Install the links."""
    app.connect("autodoc-process-docstring", _link_docstring)
    app.connect("missing-reference", _link_annotation)
    app.add_transform(LinkPublicNames)
    return {"parallel_read_safe": True}


def as_code(text: str, of: str) -> str:
    """A docstring with code for what stands between single backticks; a link, if it is a public name.

    `of` is the name of what the docstring belongs to, which needs no link to itself.
    """

    def link(found: re.Match[str]) -> str:
        code = re.sub(r"\s+", " ", found[1])
        target = documented_as(code)
        return f"``{code}``" if target in (None, of) else f":py:obj:`{code} <{target}>`"

    return _CODE.sub(link, text)


def _link_docstring(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    lines[:] = as_code("\n".join(lines), name).split("\n")


def _link_annotation(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.Element
) -> nodes.Node | None:
    """Resolve a class that an annotation names by its module to the public name it is documented under."""
    target = node["reftarget"]
    if node.get("refdomain") != "py" or not target.startswith("rekindle."):
        return None
    public = documented_as(target.rpartition(".")[2])
    if public is not None and public != target:
        return env.get_domain("py").resolve_xref(
            env, node["refdoc"], app.builder, node["reftype"], public, node, text
        )
    return text if node["refdoc"].startswith("reference/") else None  # The type of an inner part.


class LinkPublicNames(SphinxTransform):
    """Links `rk.…` between backticks in the guides."""

    default_priority = 400

    def apply(self, **options: Any) -> None:
        """Wrap every such piece of code into a reference."""
        if self.env.docname.startswith("reference/"):
            return
        for code in list(self.document.findall(nodes.literal)):
            written = code.astext()
            if not claims_to_be_public(written) or _is_within(code, _LINKED_ALREADY):
                continue
            target = documented_as(written)
            if target is None:
                logger.warning("%s is not a public name", written, location=code)
            else:
                link = addnodes.pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=target, refwarn=True, refdoc=self.env.docname
                )
                code.replace_self(link)
                link += code


def _is_within(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kinds):
            return True
        parent = parent.parent
    return False
