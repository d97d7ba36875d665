"""The folder tree is the architecture: imports point backwards along the way of the data."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import rekindle
from rekindle import errors

ROOT = Path(rekindle.__file__).parent
# Every file belongs to one of these, and imports only from its own and from those before it.
ROOMS = ["errors", "core", "choose", "fetch", "prepare", "reuse", "run", "ship", "tune", "loader", "tools"]
FACE = ["transforms", "__init__", "__main__"]  # what users import and start: after all rooms
MOST_LINES = 400  # beyond, a second idea has moved in
MOST_ANY = 200  # where a value really is anything: a sample, or an object of a library without types

SOURCES = sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")])


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(path) for path in SOURCES}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, also those that it names in strings."""
    package = path.relative_to(ROOT.parent).parts[:-1]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            base = ".".join(part for part in (above, node.module) if part)
            # `from rekindle.core import memfd` names a module, `from rekindle.choose import Scores` a thing.
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES:
            names = [node.value] if node.value != "rekindle" else []
        else:
            continue
        for name in names:
            if name.split(".")[0] == "rekindle":
                yield name if name in MODULES else name.rpartition(".")[0]


def _room(module: str) -> str:
    """The first part of a module's name after the package's."""
    return module.split(".")[1] if "." in module else "__init__"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_imports_of_every_file_are_found() -> None:
    assert "rekindle.core.counter_rng" in set(_imports(ROOT / "choose" / "scores.py"))
    assert "rekindle.choose.plan" in set(_imports(ROOT / "choose" / "batch_orders.py"))
    assert "rekindle.fetch.packed.hdf5.index" in set(_imports(ROOT / "fetch" / "open_source.py"))
    assert "rekindle.loader.dataloader" in set(_imports(ROOT / "__init__.pyi"))


def test_a_file_imports_only_from_its_own_room_and_those_before_it() -> None:
    place = {room: number for number, room in enumerate([*ROOMS, *FACE])}
    wrong = [
        f"{_name(path)} must not import {name}"
        for path in SOURCES
        for name in _imports(path)
        if place[_room(name)] > place[_room(_module(path))]
    ]
    assert not wrong


def test_module_names_are_never_put_together() -> None:
    """An f-string such as f"rekindle.{name}" would be an import that nothing sees."""
    hidden = []
    for path in SOURCES:
        nodes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.JoinedStr)]
        texts = [ast.unparse(node) for node in nodes]
        hidden += [(_name(path), text) for text in texts if re.match(r"f['\"]rekindle\.", text)]
    assert not hidden


def test_no_imports_go_in_circles() -> None:
    graph = {_module(path): {*_imports_when_loaded(path)} - {_module(path)} for path in SOURCES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


def _imports_when_loaded(path: Path) -> Iterator[str]:
    """What is imported when a file itself is: not within functions, nor for type checkers only."""
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rekindle"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)


def test_every_file_has_its_room() -> None:
    assert {_room(name) for name in MODULES} == {*ROOMS, *FACE}
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__init__.pyi", "__main__.py", "errors.py", "transforms.py", "py.typed"}


def _files_on_the_page() -> Iterator[Path]:
    """Those of the tree in ARCHITECTURE.md: rooms say what they are for, and name files below."""
    page = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    room = folder = ROOT
    for line in page[page.index("core/  ") :].split("```")[0].splitlines():
        names = line.split()
        if not line.startswith(" "):
            room = folder = ROOT / names[0]
            continue
        if names[0].endswith("/"):
            folder = room / names.pop(0)
        yield from (folder / f"{name}.py" for name in names)


def test_the_page_on_the_architecture_shows_the_tree() -> None:
    shown = [*_files_on_the_page()]
    files = [path for path in SOURCES if path.parent != ROOT and path.stem != "__init__"]
    assert sorted(map(_name, shown)) == sorted(map(_name, files))


def test_no_file_holds_more_than_one_idea_can_need() -> None:
    lines = {_name(path): len(path.read_text().splitlines()) for path in SOURCES}
    long = {name: count for name, count in lines.items() if count > MOST_LINES}
    assert not long, f"{long}: which second idea moved in?"


def test_what_has_a_type_is_not_any() -> None:
    names = (node for path in SOURCES for node in ast.walk(_tree(path)))
    found = sum(isinstance(node, ast.Name) and node.id == "Any" for node in names)
    assert 0 < found <= MOST_ANY


def test_nothing_but_public_names_is_seen_in_the_package() -> None:
    rooms = {name for name in vars(rekindle) if f"rekindle.{name}" in MODULES}
    seen = {name for name in vars(rekindle) if not name.startswith("_")} - rooms
    assert seen <= set(rekindle.__all__)
    assert set(dir(rekindle)) >= set(rekindle.__all__)


@pytest.mark.parametrize("name", rekindle.__all__)
def test_a_public_name_can_be_imported_and_is_documented(name: str) -> None:
    thing = getattr(rekindle, name)
    # `__doc__` of the class itself: `inspect.getdoc` would be content with a base class's.
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert (own or "").strip()


def test_every_error_is_public_and_descends_from_one() -> None:
    made = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    assert len(made) >= 17
    for name, one in made.items():
        assert getattr(rekindle, name) is one
        assert issubclass(one, rekindle.RekindleError)


LOADED = [module.name for module in pkgutil.walk_packages([str(ROOT)], "rekindle.", lambda _: None)]


def test_every_public_class_and_function_is_documented() -> None:
    bare = []
    for name in ["rekindle", *LOADED]:
        module = importlib.import_module(name)
        assert (module.__doc__ or "").strip(), f"{name} does not say what it is for"
        for attribute, thing in vars(module).items():
            is_own = getattr(thing, "__module__", None) == name
            if attribute.startswith("_") or not is_own:
                continue
            if inspect.isclass(thing) or inspect.isfunction(thing):
                own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
                # A dataclass without a docstring gets its signature as one.
                if not (own or "").strip() or own.startswith(f"{attribute}("):
                    bare.append(f"{name}.{attribute}")
    assert not bare, f"without a docstring: {bare}"


def test_every_test_is_in_a_file_that_is_collected() -> None:
    here = Path(__file__).parent
    helpers = [path for path in here.rglob("*.py") if not path.name.startswith("test_")]
    lost = [path.name for path in helpers if re.search(r"^\s*def test_", path.read_text(), re.MULTILINE)]
    assert helpers
    assert not lost
