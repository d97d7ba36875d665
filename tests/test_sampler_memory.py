"""What a sampler of a script keeps from epoch to epoch is in a state: the run goes on as if never ended.

The oracle is the run that was not interrupted. A new process is a loader with a sampler made anew.
"""

import random
from collections import deque
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

import rekindle as rk
from resumable import through_a_file

SIZE = 12
MODULE_RNG = np.random.default_rng(7)
PASSES = 0


class Own(Sampler):
    """Of a generator that it makes itself."""

    def __init__(self, rng):
        self.rng = rng

    def __len__(self):
        return SIZE

    def __iter__(self):
        return iter(self.order())

    def order(self):
        if isinstance(self.rng, random.Random):
            return self.rng.sample(range(SIZE), SIZE)
        if isinstance(self.rng, torch.Generator):
            return torch.randperm(SIZE, generator=self.rng).tolist()
        return self.rng.permutation(SIZE).tolist()


class Lazily(Own):
    """Draws each index when it is asked for it."""

    def __iter__(self):
        for _ in range(SIZE):
            yield int(self.rng.integers(SIZE))


class MadeLate(Own):
    def __init__(self):
        super().__init__(None)

    def order(self):
        if self.rng is None:
            self.rng = random.Random(3)
        return super().order()


class OfTheModule(Own):
    def __init__(self):
        MODULE_RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state

    def order(self):
        return MODULE_RNG.permutation(SIZE).tolist()


class CountsInTheModule(Own):
    def __init__(self):
        global PASSES
        PASSES = 0

    def order(self):
        global PASSES
        PASSES += 1
        return random.Random(PASSES).sample(range(SIZE), SIZE)


def of_a_closure():
    rng = random.Random(4)

    class OfAClosure(Own):
        def __init__(self):
            pass

        def order(self):
            return rng.sample(range(SIZE), SIZE)

    return OfAClosure()


class Counts(Own):
    """Counts its passes as they begin; the attribute is one of the class at first."""

    number = 0

    def __init__(self):
        pass

    def order(self):
        self.number += 1
        return random.Random(self.number).sample(range(SIZE), SIZE)


class CountsInItsClass(Counts):
    def __init__(self):
        type(self).number = 0

    def order(self):
        type(self).number += 1
        return random.Random(self.number).sample(range(SIZE), SIZE)


class CountsAtTheEnd(Counts):
    def __iter__(self):
        yield from random.Random(self.number).sample(range(SIZE), SIZE)
        self.number += 1


class CountsIndices(Counts):
    """Goes on where the pass before it ended."""

    def __iter__(self):
        for _ in range(SIZE - 2):
            yield self.number * 5 % SIZE
            self.number += 1


class WithSlots:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def __len__(self):
        return SIZE

    def __iter__(self):
        self.count += 1
        return iter(random.Random(self.count).sample(range(SIZE), SIZE))


class InPlace(Own):
    """Shuffles what it shuffled before."""

    def __init__(self, indices, rng):
        super().__init__(rng)
        self.indices, self.same = indices, indices

    def order(self):
        self.rng.shuffle(self.indices)
        return list(self.same)


class OfTensor(Own):
    def __init__(self):
        self.order_now = torch.arange(SIZE)

    def order(self):
        self.order_now = self.order_now.roll(5)
        self.order_now[:4] = self.order_now[:4].flip(0)
        return self.order_now.tolist()


class Turns(Own):
    def __init__(self):
        self.turns, self.seen = deque(range(SIZE), maxlen=SIZE), {"passes": 0, "first": set()}

    def order(self):
        self.turns.rotate(5)
        self.seen["passes"] += 1
        self.seen["first"].add(self.turns[0])
        self.turns.append(self.turns[3])
        return [(index + len(self.seen["first"])) % SIZE for index in self.turns]


class OfAClass:
    """The samples of one class, shuffled again where they end."""

    def __init__(self, samples, rng):
        self.samples, self.rng, self.next = samples, rng, 0

    def take(self):
        if self.next == 0:
            self.rng.shuffle(self.samples)
        sample = self.samples[self.next]
        self.next = (self.next + 1) % len(self.samples)
        return sample


class Balanced(Own):
    """Takes samples of each class in turn, as samplers for long tails do."""

    def __init__(self):
        rng = random.Random(5)
        parts = [range(7), range(7, 10), range(10, 12)]
        self.classes = [OfAClass(list(part), rng) for part in parts]

    def __iter__(self):
        for number in range(SIZE - 2):
            yield self.classes[number % 3].take()


class Batches:
    """A batch sampler around another sampler, with a generator as well."""

    def __init__(self, sampler):
        self.sampler, self.rng, self.batch_size = sampler, np.random.RandomState(3), 3

    def __len__(self):
        return 4

    def __iter__(self):
        order = list(self.sampler)
        batches = [order[start : start + 3] for start in range(0, SIZE, 3)]
        self.rng.shuffle(batches)
        yield from batches


def bits(kind):
    return np.random.Generator(kind(5))


SAMPLERS = {
    "Random": lambda: Own(random.Random(5)),
    "RandomState": lambda: Own(np.random.RandomState(5)),
    "torch.Generator": lambda: Own(torch.Generator().manual_seed(5)),
    "PCG64": lambda: Own(bits(np.random.PCG64)),
    "PCG64DXSM": lambda: Own(bits(np.random.PCG64DXSM)),
    "MT19937": lambda: Own(bits(np.random.MT19937)),
    "Philox": lambda: Own(bits(np.random.Philox)),
    "SFC64": lambda: Own(bits(np.random.SFC64)),
    "lazily": lambda: Lazily(np.random.default_rng(5)),
    "made late": MadeLate,
    "of the module": OfTheModule,
    "counts in the module": CountsInTheModule,
    "of a closure": of_a_closure,
    "counts": Counts,
    "counts in its class": CountsInItsClass,
    "counts at the end": CountsAtTheEnd,
    "counts indices": CountsIndices,
    "with slots": WithSlots,
    "list in place": lambda: InPlace(list(range(SIZE)), random.Random(5)),
    "array in place": lambda: InPlace(np.arange(SIZE), np.random.default_rng(5)),
    "tensor": OfTensor,
    "containers": Turns,
    "objects": Balanced,
}
ARGUMENTS = {
    **{name: lambda make=make: {"batch_size": 3, "sampler": make()} for name, make in SAMPLERS.items()},
    "batches": lambda: {"batch_sampler": Batches(Counts())},
    "torch's batches": lambda: {"batch_sampler": BatchSampler(Own(np.random.default_rng(5)), 3, True)},
    "torch's sampler within": lambda: {
        "batch_sampler": Batches(RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(5)))
    },
}
WAYS = {
    "none": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


def batches(loader):
    return [batch.tolist() for batch in loader]


def run(loader, epochs, leave=()):
    """All batches, by epoch, and the states behind each and between epochs; some epochs are left early."""
    whole, states = [], []
    for epoch in range(epochs):
        if epoch - 1 not in leave:
            states.append((epoch, 0, through_a_file(loader.state_dict())))
        whole.append([])
        for batch in loader:
            whole[-1].append(batch.tolist())
            states.append((epoch, len(whole[-1]), through_a_file(loader.state_dict())))
            if epoch in leave and len(whole[-1]) == 2:
                break
    return whole, states


def check(make, whole, states, leave=()):
    for epoch, done, state in states:
        if epoch in leave and done:
            continue  # Its rest comes, which the run left.
        resumed = make()
        resumed.load_state_dict(state)
        state = through_a_file(resumed.state_dict())
        for _ in range(2):  # Also in a loader that has read on since; and what it saves at once is the same.
            resumed.load_state_dict(state)
            rest = []
            for later in range(epoch, len(whole)):
                left = islice(resumed, 2) if later in leave else resumed
                rest.append([batch.tolist() for batch in left])
            assert rest == [whole[epoch][done:], *whole[epoch + 1 :]], (epoch, done)


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_a_run_goes_on_from_any_place_with_what_its_sampler_keeps(kind):
    def make():
        return rk.DataLoader(range(SIZE), seed=3, **ARGUMENTS[kind]())

    check(make, *run(make(), 3))


@pytest.mark.parametrize("way", ["workers", "persistent"])
@pytest.mark.parametrize(
    "kind", ["PCG64", "lazily", "counts", "counts at the end", "counts indices", "list in place", "batches"]
)
def test_a_run_with_workers_goes_on_with_what_its_sampler_keeps(kind, way):
    """They have drawn ahead, and some have come to the sampler's end, when a state is saved."""

    def make():
        return rk.DataLoader(range(SIZE), seed=3, **ARGUMENTS[kind](), **WAYS[way])

    whole, states = run(make(), 3)
    check(make, whole, states[::3])
    check(lambda: rk.DataLoader(range(SIZE), seed=3, **ARGUMENTS[kind]()), whole, states)


@pytest.mark.parametrize("kind", ["PCG64", "counts", "list in place", "objects", "torch's sampler within"])
def test_epochs_that_were_left_early_count(kind):
    def make():
        return rk.DataLoader(range(SIZE), seed=3, **ARGUMENTS[kind]())

    check(make, *run(make(), 4, leave={0, 2}), leave={0, 2})
