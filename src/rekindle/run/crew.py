"""The worker processes of an engine: started, listened to, replaced when they die."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import time
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.reduction import send_handle
from typing import Any

from rekindle.run.messages import Death, Forget, MapSlot
from rekindle.run.process import engine_ends, run_worker
from rekindle.run.slots import Slot, SlotPool
from rekindle.run.worker import Job

_CHECK_EVERY = 1.0  # seconds between two looks for stopped workers
_GRACE = 1.0  # seconds that a worker has to end by itself


class _Member:
    """One worker process and the engine's end of the line to it."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self.process, self.connection = process, connection
        self.mapped: set[int] = set()
        self.seen_stopped = False

    def send(self, message: Any) -> None:
        # Not `connection.send`, whose pickler takes longer to make than our messages take to pickle.
        self.connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        engine_ends.discard(self.connection)
        self.connection.close()


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
        ours, theirs = self._context.Pipe(duplex=True)
        engine_ends.add(ours)
        # A forked worker's parent is this process, a spawned one's too, a forkserver's is the server.
        parent = None if self._context.get_start_method() == "forkserver" else os.getpid()
        process = self._context.Process(
            target=run_worker,
            args=(self._job, number, theirs, self._base_seed, parent),
            daemon=True,
            name=f"rekindle-worker-{number}",
        )
        try:
            process.start()
        except BaseException as error:
            engine_ends.discard(ours)
            ours.close()
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
        member = _Member(process, ours)
        self._status_words[number] = -1
        self._selector.register(ours, selectors.EVENT_READ, number)
        self._send_slot(member, self._status)
        return member

    def send(self, number: int, message: Any, slots: Sequence[Slot] = ()) -> None:
        """Send a message, and before it whichever of the slots the worker has not mapped yet.

        A worker that is gone gets nothing; its death is told by `poll`.
        """
        member = self._members[number]
        try:
            gone = [slot for slot in member.mapped if not self._pool.has(slot)]
            if gone:
                member.send(Forget(gone))
                member.mapped.difference_update(gone)
            for slot in slots:
                if slot.number not in member.mapped:
                    self._send_slot(member, slot)
            member.send(message)
        except OSError:
            return

    def _send_slot(self, member: _Member, slot: Slot) -> None:
        try:
            member.send(MapSlot(slot.number, slot.nbytes))
            send_handle(member.connection, slot.fd, member.process.pid)
        except OSError:
            return
        member.mapped.add(slot.number)

    def poll(self, timeout: float) -> list[tuple[int, Any]]:
        """What workers said, waiting up to `timeout` seconds for the first word; deaths come last."""
        said: list[tuple[int, Any]] = []
        for key, _ in self._selector.select(timeout):
            number = key.data
            said += self._listen(number)
        now = time.monotonic()
        if now - self._last_check >= _CHECK_EVERY:
            self._last_check = now
            said += self._look_after_members()
        return said

    def _listen(self, number: int) -> list[tuple[int, Any]]:
        connection = self._members[number].connection
        said: list[tuple[int, Any]] = []
        try:
            while True:
                said.append((number, connection.recv()))
                if not connection.poll():
                    return said
        except (EOFError, OSError):
            said.append((number, self._replace(number, guiltless=False)))
        except (pickle.UnpicklingError, ValueError, AttributeError, ImportError, IndexError, MemoryError):
            # Not a message of ours: reading one was interrupted (Ctrl-C), and the line is out of step.
            said.append((number, self._replace(number, guiltless=True)))
        return said

    def _look_after_members(self) -> list[tuple[int, Any]]:
        """Replace who died without closing the line, and who is found stopped twice in a row."""
        said = []
        for number, member in enumerate(self._members):
            if not member.process.is_alive():
                said += self._listen(number) if member.connection.poll() else []
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
        self._selector.unregister(member.connection)
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
            self._selector.unregister(member.connection)
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
