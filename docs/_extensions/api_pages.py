"""Writes the pages of the API reference: every name of `rekindle.__all__`, and the command line's own help.

The pages are made from the package whenever the site is built, so none can be missing or out of date. A name
that stands in no group below gets its place on a page of its own.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from sphinx.application import Sphinx

import rekindle
from docstring_links import as_code
from public_names import STEPS, TOP
from rekindle import transforms


class Page(NamedTuple):
    """A page of the reference: its title, what it is about, and the names on it."""

    title: str
    about: str
    names: list[str]


PAGES = {
    "loader": Page(
        "DataLoader",
        "The loader, the batch just yielded, the report, and workers on other machines (:doc:`../ray`). "
        ":doc:`../compatibility` lists every difference to torch's loader.",
        ["DataLoader", "BatchInfo", "Report", "Ray"],
    ),
    "datasets": Page(
        "Datasets",
        "Images in folders, packed files, object stores and memory. The guides: :doc:`../images`, "
        ":doc:`../packing`, :doc:`../formats`.",
        ["open", "ImageDataset", "ArrayImages", "native", "Limits", "RemoteOptions", "SharedList"],
    ),
    "reuse": Page(
        "Reuse",
        "Preprocessing that is not repeated. The guide: :doc:`../reuse`.",
        ["Refurbish", "Echo", "Jpeg", "diversity", "Diversity"],
    ),
    "importance": Page(
        "Importance sampling",
        "Which samples an epoch has, and at what weight. The guide: :doc:`../importance`.",
        [
            *("ImportanceMethod", "Scores", "Uniform", "RandomSubset", "Buckets", "InfoBatch", "Kakurenbo"),
            *("SelectiveBackprop", "OnlineBatchSelection", "ActiveBias", "SelectionViaProxy", "train_proxy"),
        ],
    ),
    "near-duplicates": Page(
        "Near-duplicates",
        "Finding near-duplicates, and training with them. The guide: :doc:`../near-duplicates`.",
        ["find_redundancy", "RedundantGroups", "Redundancy"],
    ),
    "packing": Page(
        "Packing",
        "Writing, describing and checking packed files; :doc:`cli` does the same from a shell. The guide: "
        ":doc:`../packing`.",
        ["pack", "PackResult", "info", "DatasetInfo", "verify", "VerifyResult"],
    ),
}
# Their values come from the loader; how they are constructed is nobody's business.
MADE_BY_THE_LIBRARY = {
    "BatchInfo",
    "DatasetInfo",
    "Diversity",
    "PackResult",
    "Report",
    "Scores",
    "VerifyResult",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before Sphinx looks for documents."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference"))
    app.connect("autodoc-process-signature", _without_constructor)
    return {"parallel_read_safe": True}


def write_pages(folder: Path) -> None:
    """Write all pages of the reference, and remove those of earlier builds that are no more."""
    errors = [name for name in TOP if _is_error(getattr(rekindle, name))]
    errors.sort(key=lambda name: len(getattr(rekindle, name).__mro__))
    pages = {**PAGES, "errors": Page("Errors", _tree_of_errors(), errors)}
    placed = {name for page in pages.values() for name in page.names}
    rest = [name for name in TOP if name not in placed]
    if rest:
        pages["more"] = Page("More", "", rest)
    texts = {
        name: _page(page, "rekindle", [n for n in page.names if n in TOP]) for name, page in pages.items()
    }
    about = f"{inspect.cleandoc(transforms.__doc__ or '')}\n\n.. py:module:: rekindle.transforms"
    texts["transforms"] = _page(Page("Transforms", about, STEPS), "rekindle.transforms", STEPS)
    texts["cli"] = _command_line()
    texts["index"] = _index(list(pages), pages)
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.rst"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # Others need not be read again.
            path.write_text(text, encoding="utf-8")


def _page(page: Page, module: str, names: list[str]) -> str:
    parts = [_heading(page.title, "="), page.about, _summary(names, module)]
    return "\n\n".join([*parts, *(_entry(module, name) for name in names)]) + "\n"


def _entry(module: str, name: str) -> str:
    thing = getattr(sys.modules[module], name)
    if not inspect.isclass(thing):
        return f".. autofunction:: {module}.{name}"
    if _is_error(thing):
        return f".. autoexception:: {module}.{name}\n   :show-inheritance:"
    # A step is used by its constructor alone; what it inherits is documented with the base of all.
    plain = issubclass(thing, transforms.Step) and thing is not transforms.Step
    return f".. autoclass:: {module}.{name}" + ("" if plain else "\n   :members:")


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, rekindle.RekindleError)


def _index(order: list[str], pages: dict[str, Page]) -> str:
    listed = "\n".join(f"   {name}" for name in [*order[:-1], "transforms", order[-1]])
    parts = [
        _heading("API reference", "="),
        "Every public name, from its docstring. All are attributes of one module, usually imported as "
        "``import rekindle as rk``. From a shell: :doc:`cli`.",
        ".. py:module:: rekindle",
        f".. toctree::\n   :hidden:\n\n{listed}",
    ]
    for name in order:
        names = [n for n in pages[name].names if n in TOP]
        if names:
            parts += [_heading(pages[name].title, "-"), _summary(names, "rekindle")]
    parts += [_heading("Transforms", "-"), _summary(STEPS, "rekindle.transforms")]
    return "\n\n".join(parts) + "\n"


def _summary(names: list[str], module: str) -> str:
    """A table of names and what each is, in a line."""
    rows = [
        f"   * - :py:obj:`{name} <{module}.{name}>`\n     - {_first_line(getattr(sys.modules[module], name))}"
        for name in names
    ]
    return "\n".join([".. list-table::", "   :class: names", "", *rows]) if rows else ""


def _first_line(thing: object) -> str:
    """The first sentence of a docstring, with its code as code."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z])", text)[0].rstrip(".:")
    return as_code(sentence, "")


def _heading(title: str, line: str) -> str:
    return f"{title}\n{line * len(title)}"


def _tree_of_errors() -> str:
    """The tree of errors, drawn from their classes."""
    lines = [rekindle.RekindleError.__name__, *_branches(rekindle.RekindleError, "")]
    drawn = "\n".join(f"   {line}" for line in lines)
    about = (
        "Every error that Rekindle raises has one base class. Exceptions of your own code keep their type."
    )
    return f"{about}\n\n.. code-block:: text\n\n{drawn}"


def _branches(error: type, indent: str) -> list[str]:
    public = [getattr(rekindle, name) for name in TOP]
    below = [thing for thing in public if error in getattr(thing, "__bases__", ())]
    lines = []
    for child in below:
        is_last = child is below[-1]
        others = ", ".join(base.__name__ for base in child.__bases__ if base is not error)
        branch = f"{indent}{'└──' if is_last else '├──'} {child.__name__}"
        lines.append(f"{branch} ({others})" if others else branch)
        lines += _branches(child, indent + ("    " if is_last else "│   "))
    return lines


def _command_line() -> str:
    """The page of the command line: what `--help` prints, of every command."""
    top = _help()
    commands = re.findall(r"^    (\w[\w-]*) {2,}", top, re.M)
    parts = [
        _heading("Command line", "="),
        "``pip install rekindle`` installs the command ``rekindle``; ``python -m rekindle`` is the same. The "
        "guides: :doc:`../packing`, :doc:`../near-duplicates`.",
        _printed(top),
    ]
    for command in commands:
        parts += [_heading(f"rekindle {command}", "-"), _printed(_help(command))]
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    line = [sys.executable, "-m", "rekindle", *command, "--help"]
    plain = {**os.environ, "COLUMNS": "96", "NO_COLOR": "1", "PYTHON_COLORS": "0"}
    return subprocess.run(line, check=True, capture_output=True, text=True, env=plain).stdout


def _printed(text: str) -> str:
    return ".. code-block:: text\n\n" + "\n".join(f"   {line}".rstrip() for line in text.splitlines())


def _without_constructor(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None] | None:
    if what == "class" and name.removeprefix("rekindle.") in MADE_BY_THE_LIBRARY:
        return "", None
    if what == "class" and signature == "(*args, **kwargs)":  # A protocol has no constructor of its own.
        return "", None
    return None
