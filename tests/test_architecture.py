"""The folder tree is the architecture: imports point backwards along the way of the data."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import rekindle

ROOT = Path(rekindle.__file__).parent
FOLDERS = ["choose", "fetch", "prepare", "reuse", "run", "ship", "tune"]
SHARED = {"errors", "keys", "counters", "available", "global_random", "memory_file"}
# What wires the folders together, and may see all of them.
WIRING = {
    "__init__",
    "__main__",
    "cli",
    "cutting",
    "foreign_transforms",
    "images",
    "inspection",
    "iteration",
    "loader",
    "packing",
    "parked",
    "same_when_cut",
    "recipes",
    "spool",
    "state",
    "transforms",
    "with_accelerate",
    "with_reuse",
    "placement",
    "arguments",
}
WIRING |= {"seeding", "adaptive", "adaptive_state", "feedback", "all_ranks", "proxy"}
WIRING |= {"with_redundancy", "dedupe", "dedupe_page", "pictures", "progress_bar"}
# 400 is where to ask what second idea moved in; the engine's one idea (all that happens when a batch is
# asked for) takes a little more.
MOST_LINES = 450

SOURCES = sorted(ROOT.rglob("*.py"))


def _imports(path):
    """The modules of this package that a file imports, as parts after `rekindle`."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["rekindle", *package][: len(package) + 2 - node.level]
                base = ".".join([*above, base] if base else above)
            # `from rekindle import keys` names a module, `from rekindle.run import Work` a thing in one.
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "rekindle":
                yield name.split(".")[1:]


def _name(path):
    return str(path.relative_to(ROOT))


def test_the_imports_of_every_file_are_found():
    assert ["keys"] in list(_imports(ROOT / "choose" / "plan.py"))
    assert ["choose", "plan", "EpochPlan"] in list(_imports(ROOT / "choose" / "orders.py"))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parent != ROOT], ids=_name)
def test_a_folder_imports_only_from_folders_before_it_and_shared_modules(path):
    folder = path.relative_to(ROOT).parts[0]
    allowed = {*FOLDERS[: FOLDERS.index(folder) + 1], *SHARED}
    wrong = [".".join(parts) for parts in _imports(path) if parts[0] not in allowed]
    assert not wrong, f"{_name(path)} must not import {wrong}"


@pytest.mark.parametrize("path", [ROOT / f"{name}.py" for name in sorted(SHARED)], ids=_name)
def test_shared_modules_import_only_each_other(path):
    wrong = [".".join(parts) for parts in _imports(path) if parts[0] not in SHARED]
    assert not wrong, f"{_name(path)} must not import {wrong}"


def test_every_file_has_its_place():
    folders = {path.relative_to(ROOT).parts[0] for path in SOURCES if path.parent != ROOT}
    assert folders <= set(FOLDERS)
    assert {path.stem for path in SOURCES if path.parent == ROOT} <= WIRING | SHARED


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_no_file_holds_more_than_one_idea_can_need(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{_name(path)} has {lines} lines: which second idea moved in?"


def test_the_public_names_are_these():
    assert rekindle.__all__ == [
        "ActiveBias",
        "ArgumentError",
        "ArrayImages",
        "BadSamplesError",
        "BatchInfo",
        "Buckets",
        "DataError",
        "DataLoader",
        "DecodeError",
        "Diversity",
        "Echo",
        "FeedbackError",
        "FormatError",
        "ImageDataset",
        "InfoBatch",
        "Jpeg",
        "Kakurenbo",
        "LoaderTimeout",
        "Method",
        "OnlineBatchSelection",
        "OutOfMemoryError",
        "RandomSubset",
        "Redundancy",
        "RedundantGroups",
        "Refurbish",
        "RekindleError",
        "RemoteError",
        "RemoteOptions",
        "Report",
        "Scores",
        "SelectionViaProxy",
        "SelectiveBackprop",
        "StateError",
        "Uniform",
        "WorkerError",
        "diversity",
        "find_redundancy",
        "open",
        "train_proxy",
        "transforms",
    ]


@pytest.mark.parametrize("name", rekindle.__all__)
def test_a_public_name_can_be_imported_and_is_documented(name):
    thing = getattr(rekindle, name)
    # `__doc__` of the class itself: `inspect.getdoc` would be content with a base class's.
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert (own or "").strip()


def test_every_error_descends_from_one():
    errors = [getattr(rekindle, name) for name in rekindle.__all__]
    errors = [one for one in errors if isinstance(one, type) and issubclass(one, Exception)]
    assert len(errors) == 12
    assert all(issubclass(one, rekindle.RekindleError) for one in errors)


MODULES = [module.name for module in pkgutil.walk_packages([str(ROOT)], "rekindle.", lambda _: None)]


@pytest.mark.parametrize("name", ["rekindle", *MODULES])
def test_every_public_class_and_function_is_documented(name):
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), f"{name} does not say what it is for"
    bare = []
    for attribute, thing in vars(module).items():
        is_own = getattr(thing, "__module__", None) == name
        if attribute.startswith("_") or not is_own:
            continue
        if inspect.isclass(thing) or inspect.isfunction(thing):
            own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
            # A dataclass without a docstring gets its signature as one.
            if not (own or "").strip() or own.startswith(f"{attribute}("):
                bare.append(attribute)
    assert not bare, f"without a docstring in {name}: {bare}"


def test_every_test_is_in_a_file_that_is_collected():
    here = Path(__file__).parent
    helpers = [path for path in here.rglob("*.py") if not path.name.startswith("test_")]
    lost = [path.name for path in helpers if re.search(r"^\s*def test_", path.read_text(), re.MULTILINE)]
    assert helpers
    assert not lost
