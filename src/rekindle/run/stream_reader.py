"""One worker's passes over an iterable dataset: read as torch does, resumed by the dataset's own state.

A dataset may have `state_dict` and `load_state_dict`, or its iterator may, as torchdata defines them; Hugging
Face's streams do. What they give is taken behind every batch if it is small. A larger state, to which the
generators that the dataset draws from may belong, is taken the less often the larger it is, and the batches
behind it are read again.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any

import torch

from rekindle.choose.position import DatasetState, IterablePosition
from rekindle.core.global_rng import GENERATORS
from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Sample
from rekindle.errors import StateError
from rekindle.reuse.echo_stream import Echoed, EchoStream
from rekindle.reuse.finished_stream import FinishedSamples, FinishedStream
from rekindle.run.code_findings import DRAW_NOTHING
from rekindle.run.dataset_copies import follows_protocol
from rekindle.run.hugging_face import forget_loaded_state, is_hugging_face, load_state, loses_samples
from rekindle.run.job import Job
from rekindle.run.resumed_parts import RESUMED, ResumedParts, uneven_parts

_SMALL = 4096  # bytes: a state of this size is taken behind every batch, one of n times that every n batches
_MOST_BATCHES = 64  # between two states
_END = object()  # stands in a batch for the samples that a dataset no longer has


class StreamReader:
    """Reads batches of an iterable dataset. Whoever calls it has the generators seeded for this worker."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._iterator: Any = iter(())
        self._ended, self._is_stateful = True, False
        self._was_read = True  # in this pass
        self._resumed: ResumedParts | None = None  # read in place of the dataset in this pass
        self._samples: list[Sample] = []  # of the batch being made
        self._every = self._since = 1
        self._unmoved: dict[str, object] = {}  # marks of generators that nobody has drawn from in this pass

    @property
    def is_own_iterator(self) -> bool:
        """Whether the dataset is its own iterator, without a state: it can only go on, not be put back."""
        iterator, dataset = self._iterator, self._job.dataset
        if isinstance(iterator, FinishedSamples) and isinstance(dataset, FinishedStream):
            iterator, dataset = iterator.source, dataset.source
        return iterator is dataset and not is_stateful(iterator)

    def start(self, state: DatasetState, batch_size: int, seed: Callable[[], None]) -> None:
        """Go on from a state, with the generators seeded by `seed` for the pass that it leads to."""
        if not self._was_read:
            self._read_once()
        self._samples, self._since, self._every = [], 1, 1
        earlier, skip = state.passes[:-1], state.passes[-1]
        if earlier and is_hugging_face(self._job.dataset):
            state, earlier = DatasetState(None), ()
        self._begin(seed, pickle.loads(state.value) if isinstance(state.value, bytes) else None)
        for batches in earlier:
            self._skip_batches(batches, batch_size)
            self._finish(batch_size, seed)
        skipped = self._skip_batches(skip, batch_size)
        if state.derived and skipped < skip:
            raise StateError(uneven_parts(f"a part had {skipped} batches, not {skip}"))

    def _read_once(self) -> None:
        """Begin a pass that was left before this worker came to it: torch's workers have all read ahead then.

        What a generator does before its first sample, to count its passes say, is done when it is asked for.
        """
        with contextlib.suppress(Exception):  # torch's worker raises it to nobody: the pass was left.
            next(self._iterator)

    def _begin(self, seed: Callable[[], None], saved: dict[str, Any] | None = None) -> None:
        dataset, self._was_read = self._job.dataset, False
        seed()
        self._unmoved = {one.name: one.mark() for one in GENERATORS}
        self._resumed = None
        if saved is not None and RESUMED in (saved["iterator"] or ()) and is_hugging_face(dataset):
            parts, has_state = saved["iterator"][RESUMED], is_stateful(dataset)
            self._resumed = self._iterator = ResumedParts(dataset, parts, has_state)
            self._ended, self._is_stateful = False, True
            return
        # In torchdata's order: the dataset's state, then its iterator, then that one's state.
        if saved is not None and saved["dataset"] is not None:
            if is_hugging_face(dataset):
                load_state(dataset, saved["dataset"])
            else:
                dataset.load_state_dict(saved["dataset"])
        self._iterator, self._ended = iter(dataset), False
        self._is_stateful = is_stateful(dataset) or is_stateful(self._iterator)
        if saved is not None and saved["iterator"] is not None:
            self._iterator.load_state_dict(saved["iterator"])
        if saved is not None:
            self._restore(saved["generators"])
        if saved is not None and is_hugging_face(dataset):
            self._samples = list(islice(map(next, repeat(self._iterator)), 1))
            forget_loaded_state(dataset)

    def _finish(self, batch_size: int, seed: Callable[[], None]) -> None:
        """Read what a pass left over, and begin the next, unless the dataset has started over by itself."""
        left_over = batch_size if self._job.drop_last else 1
        found = [] if self._ended else list(islice(map(next, repeat(self._iterator)), left_over))
        if len(found) == left_over:
            self._samples = found
        else:
            self._begin(seed)

    def _restore(self, generators: dict[str, torch.Tensor]) -> None:
        for one in GENERATORS:
            if one.name in generators:
                self._unmoved.pop(one.name, None)
                one.restore_tensor(generators[one.name])

    def _skip_batches(self, batches: int, batch_size: int) -> int:
        """Skip batches that were made before; a collate function that may draw is called for them, too.

        A dataset that ends before ends this as well: a saved state may claim any number of batches. How many
        there were.
        """
        for number in range(batches):
            samples, _ = self.take(batch_size)
            self.used()
            if not samples or (self._job.drop_last and len(samples) < batch_size):
                return number
            if self._job.collate_fn not in DRAW_NOTHING:
                self._job.collate(samples)
        return batches

    def take(self, count: int) -> tuple[list[Sample], list[bool] | None]:
        """The samples of the next batch, and which are fresh (None without echoes); fewer at the end.

        The same again until they are `used`: an interrupt in between loses none.
        """
        samples, self._was_read = self._samples, True
        if not self._ended:
            # One call, in which no interrupt comes between a sample, or the end, and its place in the list.
            # `iter` is not called again: a dataset that is its own iterator would start over.
            coming = chain(map(next, repeat(self._iterator)), repeat(_END))
            try:
                samples.extend(islice(coming, count - len(samples)))
            except Exception as error:
                if not is_interrupt(error):
                    self._samples = []
                raise
            self._ended = samples[-1] is _END
        if self._ended:
            samples = [sample for sample in samples if sample is not _END]
        if samples and type(samples[0]) is Echoed:
            return [echo.sample for echo in samples], [echo.fresh for echo in samples]
        return samples, None

    def used(self) -> None:
        """Note that the samples taken are in a batch."""
        self._samples = []

    def state(self) -> bytes | str | None:
        """Where the dataset stands, pickled; empty if it is not taken now, None if there is none to be had.

        A string says why it could not be taken: that is for whoever wants to save it to know.
        """
        iterator = self._iterator
        dataset = self._job.dataset if self._resumed is None else iterator
        if not self._is_stateful:
            return None
        # At the end of a pass the dataset may have prepared the next one, which is no place in this one.
        if self._resumed is None and (self._ended or self._since < self._every):
            self._since += 1
            return b""
        try:
            value = pickle.dumps(self._value(dataset, iterator), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            if is_interrupt(error):
                raise
            return f"{type(error).__name__}: {error}"
        self._since, self._every = 1, min(_MOST_BATCHES, -(-len(value) // _SMALL))
        return value

    def _value(self, dataset: Any, iterator: Any) -> dict[str, Any]:
        own = dataset is iterator  # One object: its state is loaded once, into the iterator.
        return {
            "dataset": dataset.state_dict() if is_stateful(dataset) and not own else None,
            "iterator": iterator.state_dict() if is_stateful(iterator) else None,
            "generators": self._generators(),
        }

    def _generators(self) -> dict[str, torch.Tensor]:
        """The generators that were drawn from in this pass."""
        for one in GENERATORS:
            if one.name in self._unmoved and one.mark() != self._unmoved[one.name]:
                del self._unmoved[one.name]
        return {one.name: one.save_tensor() for one in GENERATORS if one.name not in self._unmoved}


def with_state_before(position: IterablePosition, dataset: Any) -> IterablePosition:
    """The position before the first batch of a loader without workers, with the state of its dataset.

    The dataset is the script's own object, and reading leaves it in another state. A dataset that can say
    where it stands only once it has begun stays without.
    """
    begun = position.made not in (None, (0,)) or position.datasets is not None
    if begun or not is_stateful(dataset) or is_hugging_face(dataset):
        return position
    try:
        value = {"dataset": dataset.state_dict(), "iterator": None, "generators": {}}
        state = DatasetState(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # The samples used are skipped on resume instead.
        if is_interrupt(error):
            raise
        return position
    return replace(position, datasets=(state,), is_live=True)


def is_stateful(dataset: object) -> bool:
    """Whether a dataset, or its iterator, can save and load where it stands; not if it is echoed."""
    if isinstance(dataset, FinishedStream | FinishedSamples):
        return is_stateful(dataset.source) and not is_hugging_face(dataset.source)
    if isinstance(dataset, EchoStream) or (is_hugging_face(dataset) and loses_samples(dataset)):
        return False
    return follows_protocol(dataset)
