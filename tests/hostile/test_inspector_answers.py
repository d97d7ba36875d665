"""Whatever the process answers that HDF5's library runs in, what cannot be of the file is an error."""

from pathlib import Path

import h5py
import numpy as np
import pytest

import rekindle as rk
from fuzz.inspector_answers import FakeProcess, answers
from hostile_packs import InMemory
from rekindle.errors import FormatError
from rekindle.fetch.packed.hdf5.index import index_hdf5
from rekindle.fetch.packed.hdf5.inspector import Inspector
from rekindle.fetch.packed.hdf5.inspector_messages import checked_answer


def inspect(printed: bytes, table: bytes = b"n") -> None:
    inspector = Inspector()
    inspector._process = process = FakeProcess(printed, table)  # type: ignore[assignment]
    try:
        inspector.inspect(InMemory(bytes(2048)), {})
    finally:
        process.stdout.close()


@pytest.mark.parametrize(
    "printed",
    [
        b"no JSON\n",
        b"{}\n{}\n",
        b"[1]\n",
        b"5\n",
        b"[" * 20_000 + b"\n",
        b'{"read": 5}\n',
        b'{"read": [0]}\n',
        b'{"read": ["a", 1.5]}\n',
        b'{"read": [0, 1]}]\n',
        b'{"images": 5}\n',
        b'{"images": {"shape": [-1]}}\n',
        b'{"images": {"shape": [1e400]}}\n',
        b'{"images": {"chunk": [0, 4]}}\n',
        b'{"images": {"dtype": "<u01,2"}}\n',
        b'{"images": {"filters": [["gzip"]]}}\n',
        b'{"classes": {"a": 0}}\n',
        b'{"names": [7]}\n',
        b'{"sample_labels": [%d]}\n' % 10**30,
        b'{"unknown": 0}\n',
    ],
)
def test_an_answer_that_cannot_be_is_a_format_error(printed: bytes) -> None:
    with pytest.raises(
        FormatError, match=r"^'hostile.file' at byte 0: HDF5's library reports what cannot be"
    ):
        inspect(printed)


@pytest.mark.parametrize("table", [b"PK", b"PK\x03\x04" + bytes(40), b"t" + bytes(8)])
def test_a_table_that_cannot_be_is_a_format_error(table: bytes) -> None:
    with pytest.raises(FormatError, match="HDF5's library reports what cannot be"):
        inspect(b"{}\n", table)


def test_labels_that_are_neither_integers_nor_strings_are_a_format_error() -> None:
    seed = answers()[0].replace(b'"kind": "numbers", "dtype": "<i4"', b'"kind": "other", "dtype": "<i4"')
    assert seed != answers()[0]
    printed, _, table = seed.partition(b"\0")
    inspector = Inspector()
    inspector._process = process = FakeProcess(printed, table)  # type: ignore[assignment]
    try:
        with pytest.raises(FormatError, match=r"'images' is of type int32, expected strings"):
            index_hdf5([InMemory(bytes(2048))], {}, lambda _: None, inspector=inspector)
    finally:
        process.stdout.close()


def test_an_answer_as_the_process_gives_it_is_taken() -> None:
    for seed in answers():
        printed, _, table = seed.partition(b"\0")
        if b"unsupported" not in printed and b"corrupt" not in printed:
            inspect(printed, table)
    checked_answer({"classes": None, "sample_labels": [None, "a", 3]})


def test_packages_are_found_where_this_process_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by PYTHONPATH; where they cannot be imported, the error says so, not that the file is corrupt."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((3, 4, 5, 3), np.uint8)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/h5py.py").write_text("raise ImportError('this h5py is of no use')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    with pytest.raises(rk.ArgumentError, match="did not start: ImportError: this h5py is of no use"):
        rk.open(tmp_path / "a.h5")
    monkeypatch.delenv("PYTHONPATH")
    assert len(rk.open(tmp_path / "a.h5")) == 3
