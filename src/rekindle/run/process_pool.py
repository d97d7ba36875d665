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
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from rekindle.core.interrupts import is_interrupt
from rekindle.core.process_state import is_stopped
from rekindle.run.fork_server import preload_workers
from rekindle.run.job import Job
from rekindle.run.messages import Done, Event, MapSlot, Ready, ToWorker, UnmapSlots, WorkerDied
from rekindle.run.nonblocking_pipe import NonblockingPipe, open_pipe
from rekindle.run.sent_job import UNGUARDED, SentJob, check_main_can_be_imported, unguarded
from rekindle.run.slots import Slot, SlotPool
from rekindle.run.unit_gate import NOT_ALONE
from rekindle.run.worker_process import engine_ends, new_process

_CHECK_EVERY = 1.0  # seconds between two checks for stopped workers
_GRACE = 1.0  # seconds that a worker has to end by itself


class _Host:
    """One process and the numbers of the workers that run in it."""

    def __init__(self, process: BaseProcess, numbers: list[int]) -> None:
        self.process, self.numbers = process, numbers
        self.seen_stopped = False


class _Line:
    """The engine's end of the pipe to one worker, and what is known of the other end."""

    def __init__(self, number: int, pipe: NonblockingPipe, host: _Host) -> None:
        self.number, self.pipe, self.host = number, pipe, host
        self.mapped: set[int] = set()
        self.events = selectors.EVENT_READ


class ProcessPool:
    """Workers with numbers from 0 on, in processes of up to `threads` of them each.

    The numbers of a dead process go to its replacement.
    """

    splits = False

    def __init__(
        self, job: Job, base_seed: int, context: BaseContext | None, slots: SlotPool, threads: int = 1
    ) -> None:
        self.size = job.workers
        self.waiting = False
        self._base_seed, self._slots = base_seed, slots
        self._context = context or multiprocessing.get_context()
        start_method = self._context.get_start_method()
        check_main_can_be_imported(job, start_method)
        self._sent = SentJob(job, forks=start_method == "fork")
        if start_method == "forkserver":
            preload_workers()
        self._status = Slot(-1, 8 * self.size)
        self._status_rows = self._status.array.data.cast("q")
        self._selector = selectors.DefaultSelector()
        self._received: list[tuple[int, Event]] = []  # and not returned by `poll` yet
        self._last_check = time.monotonic()
        self._lines: dict[int, _Line] = {}
        self._hosts: list[_Host] = []
        self._owner = os.getpid()
        processes = process_count(self.size, threads)
        try:
            for first in range(processes):
                # Neighbours are in different processes: the first few parts of a batch go to all of them.
                self._hosts.append(self._start(range(first, self.size, processes)))
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[BaseProcess]:
        return [host.process for host in self._hosts]

    def _start(self, numbers: Iterable[int]) -> _Host:
        ours: dict[int, NonblockingPipe] = {}
        theirs: dict[int, Connection] = {}
        for number in numbers:
            ours[number], theirs[number] = open_pipe()
        engine_ends.update(ours.values())
        process = new_process(self._context, self._sent, theirs, self._base_seed)
        try:
            process.start()
        except BaseException as error:
            for pipe in ours.values():
                _close(pipe)
            if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
                warnings.warn(
                    "Got pickle error when starting a worker process: with the start method "
                    f"{self._context.get_start_method()!r} the dataset, collate_fn and worker_init_fn must "
                    "be picklable. Define them at the top of a module, or use the start method 'fork'.",
                    stacklevel=2,
                )
            raise
        finally:
            for end in theirs.values():
                end.close()
        host = _Host(process, list(ours))
        for number, pipe in ours.items():
            self._status_rows[number] = NOT_ALONE
            line = self._lines[number] = _Line(number, pipe, host)
            self._selector.register(pipe.fd, line.events, number)
        status = self._status
        try:
            # A new pipe has room for this.
            self._lines[host.numbers[0]].pipe.send(MapSlot(status.number, status.nbytes), status.fd)
        except OSError as error:  # It died at once: `poll` finds out.
            if is_interrupt(error):
                raise
        return host

    def send(self, messages: Mapping[int, Sequence[ToWorker]], slots: Sequence[Slot] = ()) -> None:
        """Send each worker its messages, and before them whichever of the slots it has not mapped yet.

        Messages to a worker that is gone are dropped; `poll` reports its death.
        """
        for number, own in messages.items():
            line, first = self._lines[number], list[ToWorker | int]()
            gone = line.mapped - self._slots.numbers
            if gone:
                line.mapped -= gone
                first.append(UnmapSlots(sorted(gone)))
            for slot in slots:
                if slot.number not in line.mapped:
                    line.mapped.add(slot.number)
                    first += MapSlot(slot.number, slot.nbytes), slot.fd
            try:
                if not line.pipe.send(*first, *own):
                    self._update_events(line, all_sent=False)
            except OSError as error:  # A worker that is gone: `poll` finds out.
                if is_interrupt(error):
                    raise

    def _update_events(self, line: _Line, *, all_sent: bool) -> None:
        """Have the selector report room in the pipe as long as there is more to send."""
        events = selectors.EVENT_READ | (0 if all_sent else selectors.EVENT_WRITE)
        if events != line.events:
            line.events = events
            self._selector.modify(line.pipe.fd, events, line.number)

    def poll(self, timeout: float, enough: int = 1, batch: int | None = None) -> list[tuple[int, Event]]:
        """The messages of workers, after waiting up to `timeout` seconds for `enough`; deaths come last."""
        received = self._received
        dead: list[_Host] = []
        is_last, left = not timeout, timeout
        for _, message in received:  # before an interrupt
            enough -= type(message) is Done and batch in (None, message.batch)
        deadline = time.monotonic() + timeout
        while True:
            self.waiting = timeout > 0
            ready = self._selector.select(left)
            self.waiting = False
            for key, events in ready:
                line = self._lines[key.data]
                if events & selectors.EVENT_WRITE:
                    try:
                        self._update_events(line, all_sent=line.pipe.flush())
                    except OSError as error:  # A worker that is gone: reading finds out.
                        if is_interrupt(error):
                            raise
                if events & selectors.EVENT_READ:
                    messages, is_open = line.pipe.receive()
                    for message in messages:
                        received.append((line.number, message))
                        if type(message) is Done:
                            enough -= batch in (None, message.batch)
                        elif type(message) is not Ready:  # which nobody waits for
                            is_last = True
                    is_last = is_last or not is_open
                    if not is_open and line.host not in dead:
                        dead.append(line.host)
            left = deadline - time.monotonic()
            if is_last or enough <= 0 or left <= 0:
                break
        found, self._received = received, []
        for host in dead:
            found += self._bury(host)
        now = time.monotonic()
        if now - self._last_check >= _CHECK_EVERY:
            self._last_check = now
            found += self._check_hosts()
        return found

    def _check_hosts(self) -> list[tuple[int, Event]]:
        """Replace processes that died without closing the pipe, or were found stopped twice in a row."""
        found: list[tuple[int, Event]] = []
        for host in list(self._hosts):
            if not host.process.is_alive():
                found += self._bury(host)
                continue
            pid = host.process.pid
            stopped = pid is not None and is_stopped(pid)
            if stopped and host.seen_stopped:
                found += self._bury(host, stopped=True)
            else:
                host.seen_stopped = stopped
        return found

    def _bury(self, host: _Host, stopped: bool = False) -> list[tuple[int, Event]]:
        """The last messages of a process's workers, and its death, after which another runs in its place."""
        found: list[tuple[int, Event]] = []
        for number in host.numbers:
            line = self._lines[number]
            messages, _ = line.pipe.receive()
            found += zip(repeat(number), messages)
            self._selector.unregister(line.pipe.fd)
            _close(line.pipe)
        process = host.process
        if stopped:
            process.kill()
        process.join(_GRACE)
        if process.exitcode is None:  # It closed a pipe but is alive: it must not write any more.
            process.kill()
            process.join()
        if process.exitcode == UNGUARDED:
            raise unguarded()
        rows = {number: int(self._status_rows[number]) for number in host.numbers}
        how = "was stopped" if stopped else _how(process.exitcode)
        self._hosts[self._hosts.index(host)] = self._start(host.numbers)
        found.append(
            (host.numbers[0], WorkerDied(f"DataLoader worker (pid {process.pid}) {how}", rows, stopped))
        )
        return found

    def close(self) -> None:
        """End all workers: by closing their pipes, after a second by force."""
        if os.getpid() != self._owner:  # A forked child of the main process: the workers are not its own.
            return
        for line in self._lines.values():
            with contextlib.suppress(KeyError, ValueError):  # An interrupt came while it was replaced.
                self._selector.unregister(line.pipe.fd)
            _close(line.pipe)
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


def process_count(workers: int, threads: int) -> int:
    """How many processes of up to `threads` workers each it takes."""
    return -(-workers // threads)


def _close(pipe: NonblockingPipe) -> None:
    engine_ends.discard(pipe)
    pipe.close()


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        try:
            return f"is killed by signal: {signal.Signals(-exitcode).name}"
        except ValueError:
            return f"is killed by signal: {-exitcode}"
    return f"exited unexpectedly with exit code {exitcode}"
