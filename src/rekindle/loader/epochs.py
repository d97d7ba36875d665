"""Starts and ends the epochs of a loader: who loads the batches, and which."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sized
from dataclasses import replace
from functools import partial
from typing import cast

from rekindle.choose import Choice, OrderKind, PlannedEpochs, SamplerOrders, iterable_orders
from rekindle.choose.batch_orders import PlanOf
from rekindle.choose.echo_order import echoed_length
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.position import Position
from rekindle.choose.sampler_epochs import SamplerEpoch
from rekindle.choose.sampler_memory import SamplerMemory
from rekindle.choose.sampler_state import WorkerSeeds
from rekindle.choose.seeding import start_iterable as start_iterable_position
from rekindle.choose.seeding import worker_seed
from rekindle.choose.shard import ONE_RANK, EpochLayout, EpochStart, Shard
from rekindle.core import compile_later
from rekindle.core.analysis.changes import Watched
from rekindle.loader import dataset_state
from rekindle.loader.epoch_iterator import EpochIterator, Progress, count_start
from rekindle.loader.passes import Passes
from rekindle.loader.settings import LoaderSettings
from rekindle.reuse.planning import Layout
from rekindle.run import IterableRunner, MapRunner, Runner, start_iterable, start_map
from rekindle.run.idle_runner import IdleRunner
from rekindle.run.stream_reader import with_state_before
from rekindle.ship.batch_echo import EchoedIterableBatches, EchoedMapBatches


class Epochs:
    """The epochs of one loader. It does not refer to the loader, whose end closes it."""

    def __init__(self) -> None:
        self.next_epoch = 0
        self.requested: int | None = None  # what `set_epoch` has made the next one
        self.first_step = 0  # of every pass, where Accelerate skips the first batches
        self._sampler_epoch = SamplerEpoch()
        self.sampler_memory = SamplerMemory()
        self.passes = Passes()
        self._idle = IdleRunner()
        self._current: weakref.ref[EpochIterator] | None = None  # the pass whose workers may be kept
        self._kept_worker_seed: int | None = None  # of persistent workers, which are seeded once
        self._seeds_once: bool | None = None  # as the run did that goes on here, whatever its workers were
        # Whether the pass to come is one of `iter(loader)`. Ultralytics calls `_get_iterator` by itself, for
        # workers that see what was changed.
        self.goes_on_with_workers = False
        self._planned: PlannedEpochs | None = None
        self._planned_size = 0  # of the dataset, when the next epoch was planned
        self.sits_out = False  # The next pass has no batch, and does not count.
        self._awaits_feedback = False  # An epoch is over, and feedback on its last batch is still to come.

    def start(
        self,
        settings: LoaderSettings,
        position: Position,
        progress: Progress,
        loader: Sized,
        asked: float,
    ) -> EpochIterator:
        """An iterator over the batches from a position on; it keeps the `loader` alive.

        `asked` is when `iter()` was called. The passes' lock is held.
        """
        elsewhere = self.passes.before_another()
        if settings.importance is not None:
            for one in elsewhere:
                one.supersede()
        if settings.persistent_workers and not self.goes_on_with_workers:
            self.forget_workers()
        earlier = self._current() if self._current is not None else None
        # Beside a pass of another thread that goes on: with workers of its own, none of which are kept.
        beside = any(one is earlier for one in elsewhere)
        if settings.persistent_workers and earlier is not None and not beside:
            earlier.detach()
        self.goes_on_with_workers = False
        kept_seed = self._kept_worker_seed if _seeds_once(settings) else None
        if settings.order is OrderKind.SAMPLER:
            position.sampler = self._follow_sampler(settings, position)
        base_seed = _base_seed(settings, position) if kept_seed is None else kept_seed
        self._kept_worker_seed = base_seed
        runner, is_new = None, False
        if settings.persistent_workers and not beside and settings.reuse.sees_others_values():
            self._idle.close()  # Their cache is to go. New workers have copies of all else as it is now.
        if self._idle.runner is not None and not beside:
            runner = self._idle.take(
                settings.watched,
                persistent=settings.persistent_workers,
                copies=settings.chosen_executor in ("processes", "ray"),
                reads_on=lambda: settings.reads_on,
            )
        if runner is None:
            settings.reuse.prepare()
            runner, is_new = self._start_runner(settings, base_seed, beside=beside), True
            if settings.num_workers > 0 and position.iterable is not None:  # They have new copies.
                position.iterable = replace(position.iterable, is_live=False)
        if settings.num_workers == 0 and position.iterable is not None:
            position.iterable = with_state_before(position.iterable, settings.reuse.iterable_view())
        dataset_state.begin(settings, runner, position, is_new=is_new)
        try:
            self._give_orders(settings, runner, position, base_seed, kept_seed)
        except BaseException:  # The user's sampler raised, say: nobody will ever ask this runner for a batch.
            runner.close()
            raise
        if self._planned is not None and not beside:
            self._planned.plan_ahead()  # Now that workers are busy.
            self._planned_size = settings.size
        again = partial(self._begin_again, settings, position, base_seed, kept_seed)
        end = partial(self._end, progress, position.epoch + 1)
        iterator = EpochIterator(
            settings, runner, position, progress, end, again, loader, self.passes, self._idle
        )
        if not beside:
            self._current = weakref.ref(iterator)
        self.passes.begun.append(weakref.ref(iterator))
        self.passes.last_epoch = position.epoch
        position.begun, progress.unseen_bad = True, 0
        progress.position, self.next_epoch = position, position.epoch + 1
        count_start(settings.counters, progress, asked)
        return iterator

    def _start_runner(self, settings: LoaderSettings, base_seed: int, *, beside: bool) -> Runner:
        """New workers, and a look at what they get copies of, unless they are not to be kept."""
        compile_later.load_compiled()
        if beside:
            return _start_runner(settings, base_seed, None)
        keeps = settings.keeps_proven_workers
        watched = self._idle.watch(
            settings.watched if keeps or settings.persistent_workers else None,
            forks=settings.forks,
            reads_on=lambda: settings.reads_on,
        )
        runner = _start_runner(settings, base_seed, watched if keeps else None)
        self._idle.started(runner, keep=settings.persistent_workers)
        return runner

    def next_position(self, position: Position, sampler: object) -> Position:
        """Where the next epoch begins: at `position`, unless it has begun there, or another is asked for.

        That is by `set_epoch`, the loader's or a sampler's. If it is the position's own, it stays there.
        """
        following = self._following(position, sampler)
        following.step = following.step or self.first_step
        return following

    def _following(self, position: Position, sampler: object) -> Position:
        self._sampler_epoch.follow(sampler)
        in_sampler, requested = self._sampler_epoch.newly_set(), self.requested
        self.requested = None
        if in_sampler is not None and self._sampler_epoch.is_planned:
            # A framework counts its own epochs, in which a loader may come to its end several times.
            in_sampler = max(in_sampler, self.next_epoch if position.begun else position.epoch)
        wanted = in_sampler if requested is None else requested
        if position.begun:
            return Position(self.next_epoch if wanted is None else wanted)
        return position if wanted in (None, position.epoch) else Position(wanted)

    def resume_at(self, position: Position, sampler: object, generator: object) -> None:
        """Let the next epoch go on at the position of a state.

        It does so whatever epoch was set before, for the loader or in a sampler of ours. A sampler of the
        script's own gives the order of the epoch that the script set in it; if none, of that which it was in.
        """
        self.next_epoch, self.requested = position.epoch, None
        self._kept_worker_seed = None
        self._seeds_once = None if position.sampler_state is None else position.sampler_state.seeds_once
        self._sampler_epoch.follow(sampler)
        if self._sampler_epoch.is_planned:
            self._sampler_epoch.newly_set()
        elif position.sampler_state is not None and not self._sampler_epoch.is_newly_set:
            self._sampler_epoch.go_back_to(position.sampler_state.epoch)
        state = position.sampler_state
        if state is not None and state.step is None:
            self.sampler_memory.go_back_to(sampler, generator, state.kept or {})

    def asked_for(self, position: Position) -> Position:
        """A position, or the beginning of another epoch that `set_epoch` has made the next one."""
        requested = self.requested
        return position if requested in (None, position.epoch) else Position(requested)

    def _begin_again(
        self,
        settings: LoaderSettings,
        position: Position,
        base_seed: int,
        kept_seed: int | None,
        runner: Runner,
    ) -> Runner:
        """Go back to a position after an interrupt, with whatever was half done thrown away."""
        sampler = position.sampler
        if sampler is not None and not sampler.is_drawing:
            sampler.go_back(position.step, position.ahead)
        elif sampler is not None:
            # What it keeps may be that of a draw which was not finished.
            position.sampler_state = replace(sampler.resume_after(position.step), kept=None)
            position.sampler = self._follow_sampler(settings, position)
        if position.iterable is not None:
            position.iterable = replace(position.iterable, is_live=False)
        if settings.num_workers > 0:
            beside = self._idle.newest() is not runner
            runner.close()
            runner = self._start_runner(settings, base_seed, beside=beside)
            dataset_state.begin(settings, runner, position, is_new=True)
        self._give_orders(settings, runner, position, base_seed, kept_seed)
        return runner

    def _is_ahead_at(self, runner: Runner, position: Position, size: int) -> bool:
        """Whether workers are already loading the batches from this position on, of a dataset of this size.

        Persistent workers keep their copies of it; how many samples it has, the script decides.
        """
        return (
            self._idle.newest() is runner and self._idle.is_ahead_at(position) and size == self._planned_size
        )

    def close(self) -> None:
        """End the workers; an epoch that goes on ends with them."""
        for one in self.passes.going_on():
            one.close()
        self._idle.close()

    def forget_workers(self) -> None:
        """End workers that persist; the next ones are seeded as the first of a loader are."""
        self._kept_worker_seed = None
        earlier = self._current() if self._current is not None else None
        if any(one is earlier for one in self.passes.elsewhere()):
            self._current = None
            self._idle.leave()
        else:
            self._idle.close()

    def worker_seeds(self, settings: LoaderSettings) -> WorkerSeeds:
        """How the workers' seed is drawn from the generator that the next epoch's order is drawn from."""
        once = _seeds_once(settings) if self._seeds_once is None else self._seeds_once
        return WorkerSeeds(once, self._kept_worker_seed if once else None)

    def _follow_sampler(self, settings: LoaderSettings, position: Position) -> SamplerOrders:
        assert settings.index_sampler is not None
        planning, batch_size = settings.reuse.planning, settings.batch_size or 1
        return SamplerOrders(
            settings.index_sampler,
            batched=settings.batched,
            epoch=position.epoch,
            generator=settings.generator,
            seeds=self.worker_seeds(settings),
            resume=position.sampler_state,
            without=position.ahead,
            keep_recent=settings.bad_samples.may_substitute,
            refresh=planning.refresh(),
            plan_of=planning.plan_of_sampler(position.epoch, batch_size, settings.drop_last),
            sampler_epoch=self._sampler_epoch,
            memory=self.sampler_memory,
        )

    def close_idle(self) -> None:
        """End the workers that no epoch is using."""
        self._idle.close()

    def _give_orders(
        self,
        settings: LoaderSettings,
        runner: Runner,
        position: Position,
        base_seed: int,
        kept_seed: int | None,
    ) -> None:
        if settings.order is OrderKind.ITERABLE:
            assert position.iterable is not None
            # A stream's batches are numbered as they are yielded; what is echoed is numbered behind that.
            position.step, position.ahead = position.step + len(position.ahead), frozenset()
            first = 0 if isinstance(runner, EchoedIterableBatches) else position.step
            orders = iterable_orders(position.epoch, settings.batch_size, first)
            iterable_runner = cast("IterableRunner", runner)
            iterable_runner.begin_iterable(orders, settings.batch_size or 1, position.iterable)
        elif position.sampler is not None:
            cast("MapRunner", runner).begin(position.sampler, lambda _: base_seed)
        elif not self._is_ahead_at(runner, position, settings.size):
            seed_of_epoch: Callable[[int], int] = partial(worker_seed, settings.seed)
            if kept_seed is not None:
                seed_of_epoch = lambda _: base_seed  # noqa: E731
            if isinstance(runner, EchoedMapBatches):
                planned = partial(self._plan, settings, runner, position.epoch, position.start)
                runner.begin_planned(planned, seed_of_epoch, position.epoch, position.step)
            else:
                epoch, start = position.epoch, position.start
                orders = self._plan(settings, runner, epoch, start, position.step, position.ahead)
                cast("MapRunner", runner).begin(orders, seed_of_epoch)

    def _plan(
        self,
        settings: LoaderSettings,
        runner: Runner,
        epoch: int,
        start: EpochStart | None,
        first_step: int,
        without: Collection[int],
    ) -> PlannedEpochs:
        """Our own order from here on: the next epoch follows without a pause."""
        choice = None
        if settings.importance is not None:
            choice = settings.importance.start(epoch, ended=self._awaits_feedback)
        self._awaits_feedback = False
        may_be_kept = self._idle.newest() is runner
        one = choice is not None or not (may_be_kept and self._idle.can_load_ahead)
        shard, batch_size = settings.shard or ONE_RANK, settings.batch_size or 1
        plan_of = _plan_of(settings, choice, shard, batch_size, None if start is None else (epoch, start))
        planned = PlannedEpochs(plan_of, epoch=epoch, first_step=first_step, without=without, one=one)
        if may_be_kept:
            self._planned = planned
        return planned

    def _end(self, progress: Progress, following: int, settings: LoaderSettings, runner: Runner) -> None:
        """Keep the runner of an epoch that is over for the `following` one, or end it."""
        # Where a framework reads ahead, the training loop has yet to report on the last batch.
        self._awaits_feedback = progress.read_ahead is not None
        importance = None if self._awaits_feedback else settings.importance
        if importance is not None:  # All that this epoch can tell is known now: choose for the next one.
            try:
                importance.choose(following, ended=True)
            except BaseException:
                runner.close()
                raise
        can_keep = self._idle.newest() is runner and (settings.persistent_workers or self._idle.can_keep)
        if settings.num_workers == 0 or not can_keep:
            runner.close()
            return
        is_ahead = settings.order.is_planned and self._idle.can_load_ahead
        is_ahead = is_ahead and not (self._awaits_feedback and settings.importance is not None)
        if importance is not None and is_ahead:
            kept_seed = self._kept_worker_seed if settings.persistent_workers else None
            self._give_orders(settings, runner, Position(following), kept_seed or 0, kept_seed)
        self._idle.keep(runner, following, is_ahead=is_ahead)


def _start_runner(settings: LoaderSettings, base_seed: int, watched: Watched | None) -> Runner:
    work, echo = settings.work(base_seed, watched), settings.reuse.batch_echo
    if settings.order is OrderKind.ITERABLE:
        iterable_runner = start_iterable(work)
        if echo is None:
            return iterable_runner
        return EchoedIterableBatches(iterable_runner, echo.factor, echo.buffer, settings.seed)
    runner = start_map(work)
    return runner if echo is None else EchoedMapBatches(runner, echo.factor, echo.buffer, settings.seed)


def steps_of(
    settings: LoaderSettings,
    importance: ImportanceSession | None,
    epoch: int,
    layout: EpochLayout,
    start: EpochStart | None,
) -> int:
    """How many batches a rank has in an epoch, or behind the `start` in one, that is laid out for such ranks.

    None, if samples are chosen, and are not yet for this epoch.
    """
    choice = None
    if importance is not None:
        if importance.choice is None or importance.epoch != epoch:
            return 0
        choice = importance.choice._replace(rank=0, world=layout.world)
    shard = replace(settings.shard or ONE_RANK, rank=0, world=layout.world)
    resumed = None if start is None else (epoch, start)
    steps = _plan_of(settings, choice, shard, layout.batch_size, resumed)(epoch).steps
    echo = settings.reuse.batch_echo
    return steps if echo is None else echoed_length(steps, echo.factor)


def _plan_of(
    settings: LoaderSettings,
    choice: Choice | None,
    shard: Shard,
    batch_size: int,
    resumed: tuple[int, EpochStart] | None,
) -> PlanOf:
    layout: Layout = {
        "shuffle": settings.order is OrderKind.SHUFFLED,
        "batch_size": batch_size,
        "drop_last": settings.drop_last,
    }
    return settings.reuse.planning.plan_of(choice, layout, shard, resumed)


def _seeds_once(settings: LoaderSettings) -> bool:
    """Persistent workers are seeded once; an iterable dataset starts again with every epoch all the same."""
    return settings.persistent_workers and settings.order is not OrderKind.ITERABLE


def _base_seed(settings: LoaderSettings, position: Position) -> int:
    """What torch would seed its workers with."""
    if position.sampler is not None:
        return position.sampler.base_seed
    if settings.order is OrderKind.ITERABLE:
        workers, generator = settings.num_workers, settings.generator
        return start_iterable_position(position, settings.seed, workers, generator).base_seed
    return worker_seed(settings.seed, position.epoch)
