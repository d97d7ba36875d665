"""Asks HDF5's library what is in a file, in a process of its own, which a corrupt file may crash."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.core.directory import temporary_directory
from rekindle.core.json_input import parse_json
from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.core.memfd import anonymous_file
from rekindle.errors import ArgumentError, FormatError, MissingPackageError
from rekindle.fetch.byte_files import ByteReader
from rekindle.fetch.packed.hdf5.inspector_messages import READY, Answer, Request, checked_answer
from rekindle.fetch.packed.record_index import IndexSettings

# Seconds for a file, and one more for each megabyte of it, up to `Limits.seconds` (a sparse file may claim to
# have any number): by the clock, since storage may be slow, and of CPU time, of which intact files take far
# less.
TIMEOUT, CPU_SECONDS = 60.0, 5.0
_START_TIMEOUT = 120.0  # seconds until the process has imported what it needs, also from slow storage
_PIECE = 1 << 16
_PROGRAM = Path(__file__).with_name("inspector_process.py")


class Inspector:
    """HDF5's library in a process that is started when first needed, and again whenever it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if importlib.util.find_spec("h5py") is None:
            raise MissingPackageError("HDF5 files need h5py: pip install 'rekindle[hdf5]'.")

    def inspect(
        self, file: ByteReader, settings: IndexSettings, limits: Limits = DEFAULT_LIMITS
    ) -> tuple[Answer, dict[str, NDArray[np.int64]]]:
        """What is in a file, and arrays of where; FormatError if it is corrupt."""
        with temporary_directory() as folder:
            out = folder / "arrays.npz"
            is_remote = "://" in file.name
            more_seconds = min(file.size / 1e6, limits.seconds)
            request: Request = {
                "path": None if is_remote else os.path.abspath(file.name),
                "size": file.size,
                "out": str(out),
                "seconds": CPU_SECONDS + more_seconds,
                "images": settings.get("images"),
                "labels": settings.get("labels"),
            }
            answer = self._ask(file, json.dumps(request).encode() + b"\n", TIMEOUT + more_seconds)
            if "unsupported" in answer:
                raise FormatError(f"{file.name!r}: {answer['unsupported']}")
            if "corrupt" in answer:
                raise FormatError(
                    f"{file.name!r} at byte 0: HDF5 cannot read it: truncated or corrupt: {answer['corrupt']}"
                )
            return answer, _read_arrays(file, out)

    def _ask(self, file: ByteReader, request: bytes, seconds: float) -> Answer:
        if self._process is None:
            self._process = _start()
        process = self._process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It died; so there is no answer.
            process.stdin.write(request)
            process.stdin.flush()
        deadline = time.monotonic() + seconds
        line = _read_line(process, deadline)
        while line is not None and line.startswith(b'{"read":') and line.endswith(b"\n"):
            deadline += self._send(process, file, line)
            line = _read_line(process, deadline)
        if line is None or not line.endswith(b"\n"):
            self.close()
            late = line is None or process.returncode == -signal.SIGXCPU
            what = "took too long" if late else "crashed"
            hint = " If you trust it, raise rekindle.Limits(seconds=…)." if late else ""
            raise FormatError(f"{file.name!r} at byte 0: HDF5's library {what} on this file: corrupt.{hint}")
        try:
            return checked_answer(parse_json(line))
        except ValueError as error:
            self.close()  # It may say anything from now on.
            raise _unclear(file, error) from error

    def _send(self, process: subprocess.Popen[bytes], file: ByteReader, line: bytes) -> float:
        """Send the range of a remote file that is asked for; returns the seconds that it took to read it."""
        started = time.monotonic()
        try:
            data = file.read(*_asked_range(file, line))
        except BaseException:
            self.close()
            raise
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(data)
            process.stdin.flush()
        return time.monotonic() - started

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def _unclear(file: ByteReader, error: Exception) -> FormatError:
    return FormatError(
        f"{file.name!r} at byte 0: HDF5's library reports what cannot be of this file: corrupt: {error}"
    )


def _asked_range(file: ByteReader, line: bytes) -> tuple[int, int]:
    try:
        asked = parse_json(line)
        offset, length = asked["read"] if isinstance(asked, dict) else (None, None)
        if type(offset) is not int or type(length) is not int:
            raise ValueError(f"a range from {offset!r:.80} of {length!r:.80} bytes")
    except (TypeError, ValueError) as error:
        raise _unclear(file, error) from error
    return offset, length


def _read_arrays(file: ByteReader, path: Path) -> dict[str, NDArray[np.int64]]:
    """Tables of chunks (offset, length, mask), or of ranges (offset, length)."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        for name, array in found.items():
            columns = 2 if name == "ranges" else 3
            if array.dtype != np.int64 or array.ndim != 2 or array.shape[1] != columns:
                raise ValueError(f"{name!r:.80}: {array.dtype} of shape {array.shape}")
    except Exception as error:  # NumPy, zip and zlib have many ways to say that a file is corrupt.
        raise _unclear(file, error) from error
    return found


def _start() -> subprocess.Popen[bytes]:
    """The process, ready for requests; ArgumentError if it cannot import what it needs."""
    with os.fdopen(anonymous_file(0), "w+b") as errors:
        # It finds packages where this process does (-I would not), but not beside its own file.
        process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        line: bytes | None = None
        try:
            line = _read_line(process, time.monotonic() + _START_TIMEOUT)
        finally:
            if line != READY:
                _end(process)
        if line != READY:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            why = f"no answer within {_START_TIMEOUT:.0f} seconds" if line is None else last
            raise ArgumentError(
                f"HDF5 files are inspected by a process of its own, which did not start: {why}. See that "
                f"`{sys.executable} -P -c 'import h5py'` works: what is only on sys.path, add to PYTHONPATH."
            )
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """A line of the process's output; incomplete if it died, None if it took too long."""
    assert process.stdout is not None
    line = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(process.stdout.fileno(), _PIECE)
            if not piece:
                break
            line += piece
    return bytes(line)
