"""The worker processes of an engine: started, listened to, replaced when they die."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import selectors
import signal
import time
import warnings
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Any

from rekindle.run.line import Line, open_line
from rekindle.run.messages import Death, Forget, MapSlot
from rekindle.run.process import engine_ends, run_worker
from rekindle.run.slots import Slot, SlotPool
from rekindle.run.worker import Job

_CHECK_EVERY = 1.0  # seconds between two looks for stopped workers
_GRACE = 1.0  # seconds that a worker has to end by itself


class _Member:
    """One worker process and the engine's end of the line to it."""

    def __init__(self, process: Any, line: Line) -> None:
        self.process, self.line = process, line
        self.mapped: set[int] = set()
        self.seen_stopped = False
        self.events = selectors.EVENT_READ

    def close(self) -> None:
        engine_ends.discard(self.line)
        self.line.close()


class ProcessCrew:
    """Worker processes with numbers from 0 on; a dead one's number goes to its replacement."""

    def __init__(self, job: Job, base_seed: int, context: BaseContext | None, pool: SlotPool) -> None:
        self.size = job.workers
        self._job, self._base_seed, self._pool = job, base_seed, pool
        self._context: Any = context or multiprocessing.get_context()
        self._status = Slot(-1, 8 * self.size)
        self._status_words = self._status.array.data.cast("q")
        self._selector = selectors.DefaultSelector()
        self._last_check = time.monotonic()
        self._members: list[_Member] = []
        self._owner = os.getpid()
        try:
            for number in range(self.size):
                self._members.append(self._start(number))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[Any]:
        return [member.process for member in self._members]

    def _start(self, number: int) -> _Member:
        line, theirs = open_line()
        engine_ends.add(line)
        process = self._context.Process(
            target=run_worker,
            args=(self._job, number, theirs, self._base_seed, os.getpid()),
            daemon=True,
            name=f"rekindle-worker-{number}",
        )
        try:
            process.start()
        except BaseException as error:
            engine_ends.discard(line)
            line.close()
            if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
                warnings.warn(
                    "Got pickle error when starting a worker process: with the start method "
                    f"{self._context.get_start_method()!r} the data set, collate_fn and worker_init_fn must "
                    "be picklable. Define them at the top of a module, or use the start method 'fork'.",
                    stacklevel=2,
                )
            raise
        finally:
            theirs.close()
        member = _Member(process, line)
        self._status_words[number] = -1
        self._selector.register(line, member.events, number)
        self._tell(member, MapSlot(self._status.number, self._status.nbytes), self._status.fd)
        return member

    def send(self, number: int, message: Any, slots: Sequence[Slot] = ()) -> None:
        """Send a message, and before it whichever of the slots the worker has not mapped yet.

        A worker that is gone gets nothing; its death is told by `poll`.
        """
        member = self._members[number]
        gone = [slot for slot in member.mapped if not self._pool.has(slot)]
        if gone:
            self._tell(member, Forget(gone))
            member.mapped.difference_update(gone)
        for slot in slots:
            if slot.number not in member.mapped:
                self._tell(member, MapSlot(slot.number, slot.nbytes), slot.fd)
                member.mapped.add(slot.number)
        self._tell(member, message)

    def _tell(self, member: _Member, message: Any, fd: int | None = None) -> None:
        # A worker that is gone cannot be told anything; `poll` finds out.
        with contextlib.suppress(OSError):
            member.line.send(message)
            if fd is not None:
                member.line.send_descriptor(fd)
        self._listen_for(member)

    def _listen_for(self, member: _Member) -> None:
        """Have the selector say when more can be sent, as long as there is more to send."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.line.waiting_to_send else 0)
        if events != member.events:
            member.events = events
            self._selector.modify(member.line, events, self._selector.get_key(member.line).data)

    def poll(self, timeout: float) -> list[tuple[int, Any]]:
        """What workers said, waiting up to `timeout` seconds for the first word; deaths come last."""
        said: list[tuple[int, Any]] = []
        for key, events in self._selector.select(timeout):
            member = self._members[key.data]
            if events & selectors.EVENT_WRITE:
                with contextlib.suppress(OSError):
                    member.line.flush()
                self._listen_for(member)
            if events & selectors.EVENT_READ:
                said += self._listen(key.data)
        now = time.monotonic()
        if now - self._last_check >= _CHECK_EVERY:
            self._last_check = now
            said += self._look_after_members()
        return said

    def _listen(self, number: int) -> list[tuple[int, Any]]:
        messages, is_open = self._members[number].line.receive()
        said: list[tuple[int, Any]] = [(number, message) for message in messages]
        if not is_open:
            said.append((number, self._replace(number, guiltless=False)))
        return said

    def _look_after_members(self) -> list[tuple[int, Any]]:
        """Replace who died without closing the line, and who is found stopped twice in a row."""
        said = []
        for number, member in enumerate(self._members):
            if not member.process.is_alive():
                said += self._listen(number)
                if self._members[number] is member:
                    said.append((number, self._replace(number, guiltless=False)))
                continue
            stopped = _is_stopped(member.process.pid)
            if stopped and member.seen_stopped:
                said.append((number, self._replace(number, guiltless=True)))
            else:
                member.seen_stopped = stopped
        return said

    def _replace(self, number: int, guiltless: bool) -> Death:
        """Make sure that a worker is gone, start another in its place, and say how it went."""
        member = self._members[number]
        self._selector.unregister(member.line)
        member.close()
        if guiltless:
            member.process.kill()
        member.process.join(_GRACE)
        if member.process.exitcode is None:  # It closed its line, but lives: it must not write any more.
            member.process.kill()
            member.process.join()
        row = int(self._status_words[number])
        how = "was stopped" if guiltless else _how(member.process.exitcode)
        death = Death(f"DataLoader worker (pid {member.process.pid}) {how}", row, guiltless)
        self._members[number] = self._start(number)
        return death

    def close(self) -> None:
        """End all workers: by asking, after a second by force."""
        if os.getpid() != self._owner:  # A forked child of the main process: the workers are not its own.
            return
        for member in self._members:
            self._selector.unregister(member.line)
            member.close()
        processes: list[Any] = self.processes
        for force, seconds in ((None, _GRACE), ("terminate", 0.3), ("kill", 5.0)):
            deadline = time.monotonic() + seconds
            for process in processes:
                if force is not None and process.is_alive():
                    getattr(process, force)()
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            processes = [process for process in processes if process.is_alive()]
            if not processes:
                break
        self._selector.close()
        self._status_words.release()
        self._status.close()


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        try:
            return f"is killed by signal: {signal.Signals(-exitcode).name}"
        except ValueError:
            return f"is killed by signal: {-exitcode}"
    return f"exited unexpectedly with exit code {exitcode}"


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped and gets no time at all, as far as the system tells."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
