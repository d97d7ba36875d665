"""Whatever HDF5's library does with a hostile file, the process that asked it goes on."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hostile_packs import SAMPLES, Guarded
from packs import pack
from rekindle.errors import FormatError
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.packed.hdf5 import inspector
from rekindle.fetch.packed.hdf5.inspector import Inspector


def _fifo(path: Path) -> Any:
    """A file that became a FIFO after it was opened, which the library waits for."""
    path.write_bytes(b"")
    file = LocalFile(path)
    path.unlink()
    os.mkfifo(path)
    return file


def test_a_library_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "TIMEOUT", 2.0)
    process = Inspector()
    with pytest.raises(FormatError, match="took too long"):
        process.inspect(_fifo(tmp_path / "pipe.h5"), {})
    process.close()


def test_a_library_that_works_for_ever_is_stopped(small: dict[str, bytes], guarded: Guarded) -> None:
    """A heap that is lost, as a block of a disk may be, keeps HDF5 busy without an end."""
    data, heap = small["hdf5 groups"], small["hdf5 groups"].index(b"GCOL") + 16
    guarded.path.write_bytes(data[:heap] + bytes(4080) + data[heap + 4080 :])
    with pytest.raises(FormatError, match="took too long"):
        guarded.inspector.inspect(LocalFile(guarded.path), {})
    assert guarded.read(data) is not None


def test_a_library_that_crashes_is_an_error_and_the_next_file_is_read(tmp_path: Path) -> None:
    pipe = _fifo(tmp_path / "pipe.h5")
    pack(tmp_path / "a.h5", list(SAMPLES))
    process = Inspector()

    def kill() -> None:
        while process._process is None:
            time.sleep(0.05)
        time.sleep(0.5)
        process._process.send_signal(signal.SIGSEGV)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(FormatError, match="crashed"):
        process.inspect(pipe, {})
    thread.join()
    answer, _ = process.inspect(LocalFile(tmp_path / "a.h5"), {})
    assert answer["images"]["shape"] == [2]
    process.close()
