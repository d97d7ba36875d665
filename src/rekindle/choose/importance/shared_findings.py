"""What each rank finds in an epoch, where all others can read it: any rank's state is that of all."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import torch.distributed as dist

from rekindle.choose.rank_log import RankLog
from rekindle.choose.scores import Findings, Loaded, Measured
from rekindle.errors import RankError

_HEADER = struct.Struct("<qqqdd")  # step, samples measured, samples loaded, seconds of waiting and of working
_MEASURED = np.dtype(
    [
        ("ids", "<i8"),
        ("loss", "<f4"),
        ("probability", "<f4"),
        ("rival", "<f4"),
        ("correct", "i1"),
        ("age", "<i4"),
    ]
)
_LOADED = np.dtype([("ids", "<i8"), ("seconds", "<f4"), ("nbytes", "<i8")])
_LARGEST = 1 << 17  # samples in an entry: a store of torch.distributed takes 8 MB at once
_LAST = 2**62  # a step behind all others


class SharedFindings:
    """Publishes what this rank finds, batch by batch, and collects what others have published.

    A step is the number of a rank's batch in the epoch, or since it was resumed. Only `collect` waits, and
    for no more than others do without its help: until they have reported as often as this rank, or are past
    the batch that it reported on last.
    """

    def __init__(self) -> None:
        self._log = RankLog("feedback")
        self._read: list[list[tuple[int, Findings]]] = []  # of each rank, with their steps
        self._entries: list[int] = []
        self._step = -1  # the batch yielded last
        self._reported, self._reports = -1, 0  # the last one with a report, and how many there were on it
        self._start()

    def _start(self) -> None:
        world = dist.get_world_size()
        self._read, self._entries = [[] for _ in range(world)], [0] * world
        self._step = self._reported = -1
        self._reports = 0

    def report(self, found: Findings) -> None:
        """Publish a report of the training loop, and what else was found since the one before."""
        self._reports = 1 if self._step > self._reported else self._reports + 1
        self._reported = self._step
        self._log.write([*_entries(self._step, found)], self._step, self._reports)

    def move_to(self, step: int, *, silent: bool) -> None:
        """Note that a batch is yielded. Others are told if there was no report on the one before.

        Not if `silent`, which is for training loops that never report.
        """
        if step > self._step > self._reported and not silent:
            self._log.write([], step)
        self._step = step

    def finish(self) -> None:
        """Tell the others that no more comes in this epoch."""
        self._log.write([], _LAST)

    def begin_again(self) -> None:
        """Begin the next epoch. No rank may before all have collected what they want of this one."""
        self._log.begin_again()
        self._start()

    def collect(self, new: Findings, own: Findings) -> Findings:
        """What all ranks have found up to this one's last batch, in the order of ranks.

        `own` is what this rank has found, and `new` what it has not published of that. RankError, naming the
        rank, if one does not report on what this one has.
        """
        self._log.write([*_entries(self._step, new)], self._step + 1)
        parts: list[Findings] = []
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                parts.append(own)
            else:
                self._read_from(rank)
                parts += [found for step, found in self._read[rank] if step <= self._step]
        return Findings.of(parts)

    def _read_from(self, rank: int) -> None:
        last = self._reported
        head = self._log.wait_for(rank, last, self._reports)
        if head is None:
            raise RankError(
                f"rank {rank} has not reported feedback on batch {last} of the epoch within "
                f"{self._log.timeout:g} s (the timeout of init_process_group), as rank {dist.get_rank()} "
                "has, whose state_dict() waits for that. Has it died, or is it held up? If it leaves out the "
                "report on this batch, call state_dict() on all ranks."
            )
        first, self._entries[rank] = self._entries[rank], head.entries
        self._read[rank] += map(_decoded, self._log.entries_of(rank, first, head.entries))


def _entries(step: int, found: Findings) -> Iterator[bytes]:
    """Findings as bytes, in as many entries as it takes; seconds are in the first."""
    measured, loaded = found.measured, found.loaded
    seconds = found.wait_seconds, found.work_seconds
    rows, loads = np.empty(len(measured.ids), dtype=_MEASURED), np.empty(len(loaded.ids), dtype=_LOADED)
    for name, column in measured._asdict().items():
        rows[name] = column
    for name, column in loaded._asdict().items():
        loads[name] = column
    for start in range(0, max(len(rows), len(loads), 1), _LARGEST):
        some, others = rows[start : start + _LARGEST], loads[start : start + _LARGEST]
        yield _HEADER.pack(step, len(some), len(others), *seconds) + some.tobytes() + others.tobytes()
        seconds = 0.0, 0.0


def _decoded(entry: bytes) -> tuple[int, Findings]:
    step, samples, loads, waited, worked = _HEADER.unpack_from(entry)
    rows = np.frombuffer(entry, _MEASURED, samples, _HEADER.size)
    others = np.frombuffer(entry, _LOADED, loads, _HEADER.size + rows.nbytes)
    measured = Measured(*(rows[name].copy() for name in _MEASURED.names or ()))
    loaded = Loaded(*(others[name].copy() for name in _LOADED.names or ()))
    return step, Findings(measured, loaded, waited, worked)
