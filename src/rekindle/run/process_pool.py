"""The worker processes of an engine: started, polled for messages, replaced when they die."""

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
from itertools import repeat
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from rekindle.core.process_state import is_stopped
from rekindle.run.job import Job
from rekindle.run.messages import Event, MapSlot, ToWorker, UnmapSlots, WorkerDied
from rekindle.run.nonblocking_pipe import NonblockingPipe, open_pipe
from rekindle.run.sent_job import UNGUARDED, check_main_can_be_imported, unguarded
from rekindle.run.slots import Slot, SlotPool
from rekindle.run.worker_process import engine_ends, new_process

_CHECK_EVERY = 1.0  # seconds between two checks for stopped workers
_GRACE = 1.0  # seconds that a worker has to end by itself


class _Member:
    """One worker process and the engine's end of its pipe."""

    def __init__(self, process: BaseProcess, pipe: NonblockingPipe) -> None:
        self.process, self.pipe = process, pipe
        self.mapped: set[int] = set()
        self.seen_stopped = False
        self.events = selectors.EVENT_READ

    def close(self) -> None:
        engine_ends.discard(self.pipe)
        self.pipe.close()


class ProcessPool:
    """Worker processes with numbers from 0 on; a dead worker's number goes to its replacement."""

    def __init__(self, job: Job, base_seed: int, context: BaseContext | None, slots: SlotPool) -> None:
        self.size = job.workers
        self.waiting = False
        self._job, self._base_seed, self._slots = job, base_seed, slots
        self._context = context or multiprocessing.get_context()
        check_main_can_be_imported(job, self._context.get_start_method())
        self._status = Slot(-1, 8 * self.size)
        self._status_rows = self._status.array.data.cast("q")
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
    def workers(self) -> list[BaseProcess]:
        return [member.process for member in self._members]

    def _start(self, number: int) -> _Member:
        pipe, theirs = open_pipe()
        engine_ends.add(pipe)
        process = new_process(self._context, self._job, number, theirs, self._base_seed)
        try:
            process.start()
        except BaseException as error:
            engine_ends.discard(pipe)
            pipe.close()
            if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
                warnings.warn(
                    "Got pickle error when starting a worker process: with the start method "
                    f"{self._context.get_start_method()!r} the dataset, collate_fn and worker_init_fn must "
                    "be picklable. Define them at the top of a module, or use the start method 'fork'.",
                    stacklevel=2,
                )
            raise
        finally:
            theirs.close()
        member = _Member(process, pipe)
        self._status_rows[number] = -1
        self._selector.register(pipe, member.events, number)
        with contextlib.suppress(OSError):  # It died at once: `poll` finds out.
            self._send_slot(member, self._status)
        return member

    def send(self, number: int, messages: Sequence[ToWorker], slots: Sequence[Slot] = ()) -> None:
        """Send messages, and before them whichever of the slots the worker has not mapped yet.

        Messages to a worker that is gone are dropped; `poll` reports its death.
        """
        member = self._members[number]
        gone = member.mapped - self._slots.numbers
        if gone:
            member.mapped -= gone
            messages = [UnmapSlots(sorted(gone)), *messages]
        with contextlib.suppress(OSError):  # A worker that is gone: `poll` finds out.
            for slot in slots:
                if slot.number not in member.mapped:
                    member.mapped.add(slot.number)
                    self._send_slot(member, slot)
            self._update_events(member, all_sent=member.pipe.send(*messages))

    def _send_slot(self, member: _Member, slot: Slot) -> None:
        member.pipe.send(MapSlot(slot.number, slot.nbytes))
        self._update_events(member, all_sent=member.pipe.send_descriptor(slot.fd))

    def _update_events(self, member: _Member, *, all_sent: bool) -> None:
        """Have the selector report room in the pipe as long as there is more to send."""
        events = selectors.EVENT_READ | (0 if all_sent else selectors.EVENT_WRITE)
        if events != member.events:
            member.events = events
            self._selector.modify(member.pipe, events, self._selector.get_key(member.pipe).data)

    def poll(self, timeout: float) -> list[tuple[int, Event]]:
        """The messages of workers, after waiting up to `timeout` seconds for one; deaths come last."""
        found: list[tuple[int, Event]] = []
        self.waiting = timeout > 0
        ready = self._selector.select(timeout)
        self.waiting = False
        for key, events in ready:
            member = self._members[key.data]
            if events & selectors.EVENT_WRITE:
                with contextlib.suppress(OSError):  # A worker that is gone: reading finds out.
                    self._update_events(member, all_sent=member.pipe.flush())
            if events & selectors.EVENT_READ:
                found += self._receive(key.data)
        now = time.monotonic()
        if now - self._last_check >= _CHECK_EVERY:
            self._last_check = now
            found += self._check_members()
        return found

    def _receive(self, number: int) -> list[tuple[int, Event]]:
        messages, is_open = self._members[number].pipe.receive()
        found: list[tuple[int, Event]] = list(zip(repeat(number), messages))
        if not is_open:
            found.append((number, self._replace(number, stopped=False)))
        return found

    def _check_members(self) -> list[tuple[int, Event]]:
        """Replace workers that died without closing the pipe, or were found stopped twice in a row."""
        found: list[tuple[int, Event]] = []
        for number, member in enumerate(self._members):
            if not member.process.is_alive():
                found += self._receive(number)
                if self._members[number] is member:
                    found.append((number, self._replace(number, stopped=False)))
                continue
            pid = member.process.pid
            stopped = pid is not None and is_stopped(pid)
            if stopped and member.seen_stopped:
                found.append((number, self._replace(number, stopped=True)))
            else:
                member.seen_stopped = stopped
        return found

    def _replace(self, number: int, stopped: bool) -> WorkerDied:
        """Make sure that a worker is gone, start another under its number, and describe its death."""
        member = self._members[number]
        self._selector.unregister(member.pipe)
        member.close()
        if stopped:
            member.process.kill()
        member.process.join(_GRACE)
        if member.process.exitcode is None:  # It closed its pipe but is alive: it must not write any more.
            member.process.kill()
            member.process.join()
        if member.process.exitcode == UNGUARDED:
            raise unguarded()
        row = int(self._status_rows[number])
        how = "was stopped" if stopped else _how(member.process.exitcode)
        death = WorkerDied(f"DataLoader worker (pid {member.process.pid}) {how}", row, stopped)
        self._members[number] = self._start(number)
        return death

    def close(self) -> None:
        """End all workers: by closing their pipes, after a second by force."""
        if os.getpid() != self._owner:  # A forked child of the main process: the workers are not its own.
            return
        for member in self._members:
            with contextlib.suppress(KeyError, ValueError):  # An interrupt came while it was replaced.
                self._selector.unregister(member.pipe)
            member.close()
        processes = self.workers
        for force, seconds in ((None, _GRACE), (BaseProcess.terminate, 0.3), (BaseProcess.kill, 5.0)):
            deadline = time.monotonic() + seconds
            for process in processes:
                if force is not None and process.is_alive():
                    force(process)
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            processes = [process for process in processes if process.is_alive()]
            if not processes:
                break
        self._selector.close()
        self._status_rows.release()
        self._status.close()


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        try:
            return f"is killed by signal: {signal.Signals(-exitcode).name}"
        except ValueError:
            return f"is killed by signal: {-exitcode}"
    return f"exited unexpectedly with exit code {exitcode}"
