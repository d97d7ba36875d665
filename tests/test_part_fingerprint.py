"""The fingerprint of a part changes with all that it depends on, and with nothing else."""

import importlib
import os
import runpy
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

import rekindle as rk
from rekindle.reuse.part_fingerprint import part_fingerprint
from rekindle.reuse.split_dataset import TorchSplit

T = rk.transforms
LEVEL = 3


def _reads_a_global(value):
    return value + LEVEL


def _reads_nothing(value):
    return value + 3


def _made(number):
    return lambda value: value + number


def _made_of_two(one, other):
    return lambda value: value if one is None else other


def _kind_with(level):
    class Kind:
        _level = level

    return Kind


def _fingerprint(dataset):
    found = part_fingerprint(TorchSplit(dataset, None), [])
    return None if found is None else found.code


def _files(dataset):
    return part_fingerprint(TorchSplit(dataset, None), []).files.digest()


class Holder:
    """Holds anything."""

    def __init__(self, held):
        self.held = held

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, True),
        (np.zeros(3), np.ones(3)),
        (np.zeros(4), np.zeros((2, 2))),
        (torch.zeros(3), torch.tensor([0.0, -0.0, 0.0])),
        (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.float16)),
        (_made(1), _made(2)),
        (lambda value: value + 1, lambda value: value + 2),
        (_reads_a_global, _reads_nothing),
        (["a", "b"], ["b", "a"]),
        (T.RandomCrop(3), T.RandomCrop(4)),
        (_made(None), _made(0)),
        (_made_of_two(None, 1), _made_of_two(1, None)),
        (_kind_with(1), _kind_with(2)),
    ],
)
def test_a_fingerprint_changes_with_what_a_part_depends_on(one, other):
    assert _fingerprint(Holder(one)) == _fingerprint(Holder(one)) is not None
    assert _fingerprint(Holder(one)) != _fingerprint(Holder(other))


NAMINGS = {
    "a list of paths": lambda file: {"files": [file], "words": ["x"]},
    "pairs": lambda file: {"pairs": [(str(file), 0)]},
    "one path": lambda file: {"path": str(file)},
    "bytes": lambda file: {"path": os.fsencode(file)},
    "dictionaries": lambda file: {"samples": [{"image": str(file), "label": 3}]},
    "a name in a folder": lambda file: {"root": str(file.parent), "names": [file.name]},
    "a folder": lambda file: {"root": str(file.parent.parent)},
    "a dataset within": lambda file: {"dataset": Holder(file)},
    "a function": lambda file: {"read": _made(str(file))},
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_fingerprint_changes_with_a_file_however_it_is_named(naming, tmp_path):
    file = tmp_path / "within" / "a"
    file.parent.mkdir()
    file.write_bytes(b"1")
    dataset = Holder(types.SimpleNamespace(**NAMINGS[naming](file)))
    before = _files(dataset)
    assert _files(dataset) == before
    file.write_bytes(b"22")
    longer = _files(dataset)
    assert longer != before
    status = file.stat()
    file.write_bytes(b"33")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as of an archive with fixed times
    assert _files(dataset) != longer


def test_a_fingerprint_changes_with_a_function_of_a_module_of_ones_own(monkeypatch, tmp_path):
    own = tmp_path / "preparing.py"
    own.write_text("LEVEL = 3\ndef prepare(value):\n    return value + LEVEL\n")
    monkeypatch.syspath_prepend(tmp_path)
    reader = {"preparing": importlib.import_module("preparing")}
    exec("def read(value):\n    return preparing.prepare(value)", reader)
    before = _fingerprint(Holder(reader["read"]))
    assert _fingerprint(Holder(reader["read"])) == before is not None
    monkeypatch.setattr("preparing.LEVEL", 4)
    assert _fingerprint(Holder(reader["read"])) != before


def test_a_fingerprint_changes_with_code_and_globals(monkeypatch):
    before = _fingerprint(Holder(_reads_a_global)), _fingerprint(Holder(0))
    monkeypatch.setattr(sys.modules[__name__], "LEVEL", 4)
    assert _fingerprint(Holder(_reads_a_global)) != before[0]
    monkeypatch.setattr(Holder, "__getitem__", lambda self, index: index + 1)
    assert _fingerprint(Holder(0)) != before[1]


SIZE_VARIABLE = "REKINDLE_TEST_SIZE"


def _reads_the_environment(value):
    return value + int(os.environ.get("REKINDLE_TEST_SIZE", "1"))


def _imports_the_environment(value):
    from os import environ as variables

    return [variables[name] for name in ("HOME", "REKINDLE_TEST_SIZE")]


def _reads_a_variable_named_by_a_global(value):
    return value + int(os.getenv(SIZE_VARIABLE, "1"))


def _has_the_same_text(value):
    return f"{value} REKINDLE_TEST_SIZE"


@pytest.mark.parametrize(
    "read", [_reads_the_environment, _imports_the_environment, _reads_a_variable_named_by_a_global]
)
def test_a_fingerprint_changes_with_the_environment_variables_that_code_names(monkeypatch, read):
    monkeypatch.delenv(SIZE_VARIABLE, raising=False)
    found = []
    for value in ("1", "2"):
        found.append((_fingerprint(Holder(read)), _fingerprint(Holder(_has_the_same_text))))
        monkeypatch.setenv("REKINDLE_TEST_ANOTHER", value)
        assert _fingerprint(Holder(read)) == found[-1][0]
        monkeypatch.setenv(SIZE_VARIABLE, value)
    found.append((_fingerprint(Holder(read)), _fingerprint(Holder(_has_the_same_text))))
    readers, others = (set(ones) for ones in zip(*found, strict=True))
    assert len(readers) == 3
    assert len(others) == 1


def test_a_fingerprint_changes_with_the_default_dtype():
    before = _fingerprint(Holder(0))
    torch.set_default_dtype(torch.float64)
    try:
        assert _fingerprint(Holder(0)) != before
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.slow
def test_what_cannot_be_pickled_has_no_fingerprint_unless_it_declares_one():
    with open(os.devnull) as file:
        holder = Holder(file)
        assert _fingerprint(holder) is None
        holder.fingerprint = "version 1"
        assert _fingerprint(holder) is not None


def test_a_fingerprint_is_the_same_in_another_process(tmp_path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom rekindle.reuse.part_fingerprint import part_fingerprint\n"
        "from rekindle.reuse.split_dataset import TorchSplit\nLEVEL = 3\n"
        "class Own:\n    def __init__(self):\n        self.names = {'a': [1, 2.5, None], 'b': np.arange(5)}\n"
        "    def __getitem__(self, index):\n        return index + LEVEL + Own.twice(index)\n"
        "    @staticmethod\n    def twice(value):\n        return 2 * value\n"
        "found = part_fingerprint(TorchSplit(Own(), None), []).code\nprint(found)\n"
    )
    here = runpy.run_path(str(tmp_path / "own.py"))["found"]
    source = os.path.dirname(os.path.dirname(rk.__file__))
    there = subprocess.run(
        [sys.executable, "own.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here != "None"
