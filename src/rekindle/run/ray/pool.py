"""The actors of a Ray cluster as an engine's workers: asked for samples, replaced when they die.

Ray may run a request twice, lose a result, or lose a whole node. A request is a pure function of its keys, so
whatever is in doubt is asked for again, and the first result counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.errors import WorkerError
from rekindle.run.batch_layout import Layout
from rekindle.run.job import Job
from rekindle.run.messages import (
    AssignSlot,
    Cancel,
    CheckCopy,
    CopyChecked,
    Described,
    Done,
    Event,
    Replaced,
    SetLayout,
    StartFailed,
    ToWorker,
    Unit,
)
from rekindle.run.ray import cluster
from rekindle.run.ray.actor import Loaded, Started
from rekindle.run.ray.actor_cache import without_store
from rekindle.run.ray.actors import Actors
from rekindle.run.ray.lent_memory import Lender, LentMemory
from rekindle.run.ray.pace import Pace
from rekindle.run.ray.schedule import Schedule, split
from rekindle.run.ray.unit_results import NOTHING_SPENT, Request, UnitResults
from rekindle.run.slots import Slot

_DEPTH = 2  # requests at an actor: the one that it loads, and the one that it goes on with
_LOOK_EVERY = 0.1  # seconds between two looks for late requests, while waiting
_START_WITHIN = 60.0  # seconds, for one actor at least
_MOST_DEATHS, _MOST_LOSSES = 3, 10
_STUCK = 30.0  # seconds without an answer, although others have answered for it


@dataclass(slots=True, eq=False)
class _Call:
    """A call of an actor's method whose result is to come; without a request, of another kind than `load`."""

    number: int
    handle: Any
    sent: float
    request: Request | None = None
    epoch: int | None = None  # of a check of its copy
    lent: LentMemory | None = None


class RayPool:
    """Actors with numbers from 0 on, of which those that are up load what all are sent."""

    splits = True  # Batches come whole: which rows go where depends on who is up, and on what is cached.
    workers = ()

    def __init__(self, job: Job, base_seed: int, actors: Actors) -> None:
        self.size, self.waiting = job.workers, False
        self._actors, self._ray, self._base_seed = actors, actors.ray, base_seed
        self._fixed = job.worker_init_fn is not None  # The code looks at which worker it runs in.
        self._store = None if job.reused is None else job.reused.store
        self._cache = actors.cache_recipe(self._store)
        self._stop_at_failure = job.stop_at_failure
        self._job = cluster.put(self._ray, without_store(job))
        self._calls: dict[Any, _Call] = {}  # by reference to the result
        self._at: list[list[_Call]] = [[] for _ in range(self.size)]  # by actor, in order
        self._answered = [time.monotonic()] * self.size
        self._nodes: list[str | None] = [None] * self.size
        self._failed_starts = [0] * self.size
        self._schedule, self._pace = Schedule(self.size), Pace()
        self._lender = Lender(self.size)
        self._units: dict[tuple[int, int], UnitResults] = {}
        self._layout: Layout | None = None
        self._events: list[tuple[int, Event]] = []
        self._waiting_since: float | None = time.monotonic()  # for a first actor
        for number in range(self.size):
            self._start(number)

    # Messages of the engine.

    def send(self, messages: Mapping[int, Sequence[ToWorker]], slots: Sequence[Slot] = ()) -> None:
        """Take messages of the engine to workers, by number, and the slots that these are about."""
        by_number = {slot.number: slot for slot in slots}
        for number, own in messages.items():
            for message in own:
                self._take(number, message, by_number)
        self._fill()

    def _take(self, number: int, message: ToWorker, slots: Mapping[int, Slot]) -> None:
        match message:
            case Unit():
                slot = None if message.slot is None else slots[message.slot]
                self._add(UnitResults(message, number, slot, self._stop_at_failure))
            case SetLayout(layout):
                self._layout = layout
            case AssignSlot(batch, part, slot_number):
                unit = self._units.get((batch, part))
                if unit is not None:
                    unit.slot = slots[slot_number]
                    self._tell(unit)
            case Cancel(before):
                self._cancel(before)
            case CheckCopy(epoch):
                self._check_copy(number, epoch)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for actors")

    def _add(self, unit: UnitResults) -> None:
        self._units[unit.key] = unit
        requests = split(
            unit,
            self.size,
            sample_seconds=self._pace.sample_seconds,
            by_cache=self._cache is not None,
        )
        if self._fixed:
            requests = [Request(unit, range(len(unit.unit.indices)), unit.number, fixed=True)]
        unit.pending = len(requests)
        for request in requests:
            self._schedule.add(request)

    def _cancel(self, before: int) -> None:
        """Drop all units of batches below this one; what is loaded of them already is of no use."""
        for unit in [unit for unit in self._units.values() if unit.unit.batch < before]:
            unit.cancelled = True
            del self._units[unit.key]
            self._events.append((unit.number, Done(*unit.key, NOTHING_SPENT)))

    def _check_copy(self, number: int, epoch: int) -> None:
        if number in self._schedule.slow:  # Who knows when it would answer.
            self._replace_stuck(self._at[number][0])
        if number in self._schedule.up:
            handle = self._actors.handle(number)
            self._call(number, handle, handle.check_copy.remote(self._actors.loader, epoch), epoch=epoch)
        else:  # It will start with a new copy.
            self._events.append((number, CopyChecked(epoch, True)))

    # Calls of actors.

    def _start(self, number: int) -> None:
        handle = self._actors.handle(number, self._nodes[number])
        self._call(
            number, handle, handle.start.remote(self._actors.loader, self._job, self._base_seed, self._cache)
        )

    def _call(
        self,
        number: int,
        handle: object,
        ref: object,
        request: Request | None = None,
        epoch: int | None = None,
        lent: LentMemory | None = None,
    ) -> None:
        call = self._calls[ref] = _Call(number, handle, time.monotonic(), request, epoch, lent)
        self._at[number].append(call)

    def _load(self, number: int, request: Request) -> None:
        handle = self._actors.handle(number)
        request.copies += 1
        lent = self._lender.lend(number, request.nbytes(self._layout))
        loan = None if lent is None else lent.loan
        ref = handle.load.remote(self._actors.loader, request.message(), loan)
        self._call(number, handle, ref, request, lent=lent)

    def _fill(self) -> None:
        """Send waiting requests to whoever has room, those with the least to do first."""
        for depth in range(_DEPTH):
            for number in sorted(self._schedule.up - self._schedule.slow):
                if len(self._at[number]) == depth:
                    request = self._schedule.next_for(number)
                    if request is not None:
                        self._load(number, request)

    # Answers.

    def poll(self, timeout: float, enough: int = 1, batch: int | None = None) -> list[tuple[int, Event]]:
        """What the engine is to know, after waiting up to `timeout` seconds for something."""
        if not self._events:
            self._collect(timeout)
        self._fill()
        self._ask_others()
        events, self._events = self._events, []
        return events

    def _collect(self, timeout: float) -> None:
        ray, refs = self._ray, list(self._calls)
        if not refs:
            time.sleep(min(timeout, _LOOK_EVERY))
            return
        self.waiting = timeout > 0
        ready, others = ray.wait(refs, num_returns=1, timeout=min(timeout, _LOOK_EVERY) if timeout else 0)
        self.waiting = False
        if ready and others:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        for ref in ready:
            if ref in self._calls:  # Not one of an actor that was found dead just now.
                self._receive(ref)

    def _receive(self, ref: object) -> None:
        call = self._calls[ref]
        try:
            result = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            if cluster.is_actors_end(self._ray, error):
                self._died(call, error)
            else:
                self._forget(ref)
                self._lost(call, error)
            return
        self._forget(ref)
        now = time.monotonic()
        since = max(call.sent, self._answered[call.number])
        self._answered[call.number] = now
        self._schedule.slow.discard(call.number)
        if isinstance(result, Started):
            self._started(call, result)
        elif call.request is None:
            self._events += [(call.number, message) for message in result]
        else:
            self._loaded(call.number, call.request, self._with_lent(call, result), now - since)

    def _forget(self, ref: object) -> None:
        call = self._calls.pop(ref)
        self._at[call.number].remove(call)
        if call.request is not None:
            call.request.copies -= 1

    def _started(self, call: _Call, started: Started) -> None:
        if started.failure is not None:
            self._events.append((call.number, StartFailed(started.failure)))
            return
        self._nodes[call.number] = started.node
        self._failed_starts[call.number], self._waiting_since = 0, None
        self._schedule.groups[call.number] = started.cache or call.number
        self._schedule.up.add(call.number)
        self._actors.started(call.number, started.pid)

    def _with_lent(self, call: _Call, loaded: Loaded) -> Loaded:
        """A result with what its actor has written to the memory that was lent for it."""
        if call.lent is None:
            return loaded
        written = self._lender.take_back(
            call.number, call.lent, found=loaded.found_lent, nbytes=loaded.lent_bytes
        )
        return loaded if written is None else loaded._replace(memory=written)

    def _loaded(self, number: int, request: Request, loaded: Loaded, seconds: float) -> None:
        spent = loaded.done.spent
        self._pace.note(seconds, len(request.rows), spent.load_seconds, spent.samples)
        self._events += [(number, message) for message in loaded.others if isinstance(message, CopyChecked)]
        if self._store is not None and loaded.cache is not None:
            is_counted = self._schedule.is_first_of_group(number)
            counted = loaded.cache if is_counted else loaded.cache.without_content()
            self._store.elsewhere[f"{self._actors.loader}-{number}"] = counted
        unit = request.unit
        if request.done or unit.cancelled:
            return
        request.done = True
        unit.add(request, loaded, self._layout)
        if self._layout is None and loaded.described and unit.unit.kind == "rows" and not unit.described:
            unit.described = True
            self._fixed = self._fixed or loaded.uses_worker_id
            described = Described(*unit.key, loaded.spec, loaded.uses_worker_id)
            self._events.append((unit.number, described))
        self._tell(unit)

    def _tell(self, unit: UnitResults) -> None:
        answer = unit.answer(self._layout)
        if answer is not None:
            if isinstance(answer, Done):
                del self._units[unit.key]
            self._events.append((unit.number, answer))

    # What goes wrong.

    def _lost(self, call: _Call, error: Exception) -> None:
        """Ask again for a result that was lost on its way, although its actor lives."""
        if call.epoch is not None:
            self._check_copy(call.number, call.epoch)
            return
        if call.request is None:
            raise cluster.cannot_start(error) from error
        request = call.request
        request.losses += 1
        if request.losses >= _MOST_LOSSES:
            raise WorkerError(
                f"Ray has lost the result for {request.shown()} {request.losses} times, the last time with: "
                f"{error}. If its object store is full, raise object_store_memory or lower batch_size, "
                "prefetch_factor or the number of workers."
            ) from error
        self._again(request)

    def _again(self, request: Request) -> None:
        if not (request.done or request.unit.cancelled or request.copies):
            self._schedule.add(request, first=True)

    def _died(self, call: _Call, error: Exception) -> None:
        """Replace an actor, and have what it was sent loaded by others."""
        number = call.number
        lost = [ref for ref, one in self._calls.items() if one.number == number]
        calls = list(self._at[number])
        for ref in lost:
            self._forget(ref)
        was_up = number in self._schedule.up
        self._schedule.up.discard(number)
        self._schedule.slow.discard(number)
        self._events.append((number, Replaced([number])))
        outside = cluster.is_from_outside(error)
        requests = [one.request for one in calls if one.request is not None]
        if not outside and not was_up:
            self._failed_starts[number] += 1
            if self._failed_starts[number] >= _MOST_DEATHS:
                raise WorkerError(
                    f"{cluster.how_it_ended(error)} before it could load anything, and so did the two before "
                    "it. Look at what workers do when they start: unpickling the dataset, worker_init_fn."
                ) from error
        elif not outside and requests:
            requests = [*self._suspects(requests[0], error), *requests[1:]]
        for request in reversed(requests):
            self._again(request)
        self._lender.note_new_actor(number)
        self._actors.drop(number, kill=True)  # It may be alive, and only out of reach.
        self._start(number)
        if not self._schedule.up and self._waiting_since is None:
            self._waiting_since = time.monotonic()

    def _suspects(self, request: Request, error: Exception) -> list[Request]:
        """What an actor was loading when it died: sample by sample, so that the next death tells which."""
        if request.done:
            return [request]
        request.deaths += 1
        if request.deaths >= _MOST_DEATHS:
            raise WorkerError(
                f"{cluster.how_it_ended(error)}: {request.shown()} has killed {request.deaths} workers. Load "
                "it by itself to see why: dataset[index], or num_workers=0 without executor=. If nothing is "
                "wrong with it, the node may be running out of memory."
            ) from error
        unit = request.unit
        if request.copies or unit.unit.kind != "rows" or len(request.rows) == 1:
            return [request]
        request.done = True
        unit.pending += len(request.rows) - 1
        return [
            Request(unit, [row], request.home, request.fixed, deaths=request.deaths) for row in request.rows
        ]

    def _ask_others(self) -> None:
        """Have idle actors load what is late elsewhere; end an actor that never answers."""
        now = time.monotonic()
        if self._waiting_since is not None and now - self._waiting_since > _START_WITHIN:
            cluster.check_room(self._ray, self._actors.settings, _START_WITHIN)
            self._waiting_since = None
        late = [call for calls in self._at for call in calls if self._is_late(call, now)]
        for call in late:
            request = call.request
            assert request is not None
            if request.done:
                self._schedule.slow.add(call.number)
                if now - self._answered[call.number] > _STUCK and now - call.sent > _STUCK:
                    self._replace_stuck(call)
                    return
            elif request.copies == 1 and not request.fixed:
                idle = self._idle(call.number)
                if idle is not None:
                    self._load(idle, request)

    def _replace_stuck(self, call: _Call) -> None:
        self._actors.drop(call.number, kill=True)
        self._died(call, WorkerError("it was killed by `ray.kill`: it had not answered for long"))

    def _is_late(self, call: _Call, now: float) -> bool:
        request = call.request
        if request is None:
            return False
        ahead = self._at[call.number].index(call)
        since = max(call.sent, self._answered[call.number])
        return now - since > (ahead + 1) * self._pace.late_after(len(request.rows))

    def _idle(self, besides: int) -> int | None:
        """An actor with nothing to do, on another node if there is one."""
        idle = [number for number in self._schedule.up - self._schedule.slow if not self._at[number]]
        elsewhere = [number for number in idle if self._nodes[number] != self._nodes[besides]]
        return min(elsewhere or idle, default=None)

    def close(self) -> None:
        """Let go of what is under way; the actors are kept for the next pool, and end with the loader."""
        self._calls.clear()
        self._units.clear()
        self._schedule = Schedule(self.size)
