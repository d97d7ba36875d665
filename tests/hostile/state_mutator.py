"""States of many kinds of loaders, changed in one or more fields; run as a program for a long search.

    PYTHONPATH=src python tests/hostile/state_mutator.py EXAMPLES SEED

A state that was changed must load, and then yield only batches of the dataset's own samples, or be refused
with StateError. Anything else is a fault: another exception, a crash, a hang, memory out of proportion.
"""

import copy
import resource
import signal
import struct
import sys
from collections import Counter
from itertools import islice

import numpy as np
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler

import rekindle as rk
from rekindle import transforms

SIZE, BATCH = 40, 4
_MOST_BATCHES = 200  # of all epochs that are tried, more than any of these loaders has
_MEMORY = 256 << 20  # bytes that no state of these loaders may cost
_SECONDS = 30


class Numbers(Dataset):
    """Samples that are their own index."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(IterableDataset):
    """The same, one after the other."""

    def __iter__(self):
        return (torch.tensor(index) for index in range(SIZE))


class NumPyOrder(Sampler):
    """Draws its order from NumPy's global generator."""

    def __iter__(self):
        return iter(np.random.permutation(SIZE).tolist())

    def __len__(self):
        return SIZE


class Counting(Sampler):
    """A sampler with a state of its own."""

    def __init__(self):
        self.drawn = 0

    def __iter__(self):
        while self.drawn < SIZE:
            self.drawn += 1
            yield self.drawn - 1
        self.drawn = 0

    def __len__(self):
        return SIZE

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


def _images():
    pixels = np.arange(SIZE, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 8, 8, 3), np.uint8)
    steps = [transforms.RandomHorizontalFlip(), transforms.RandomCrop(8, padding=2), transforms.ToTensor()]
    return rk.ArrayImages(pixels, np.arange(SIZE), steps)


def _groups():
    return rk.Redundancy(rk.RedundantGroups.of([[0, 1, 2], [10, 11]], SIZE), mode="remove")


def _loader(dataset=None, **options):
    return rk.DataLoader(Numbers() if dataset is None else dataset, BATCH, **options)


LOADERS = {
    "shuffled": lambda: _loader(shuffle=True),
    "in order": lambda: _loader(seed=7),
    "out of order": lambda: _loader(shuffle=True, num_workers=2, executor="threads", in_order=False),
    "sampler": lambda: _loader(sampler=RandomSampler(range(SIZE))),
    "sampler of NumPy": lambda: _loader(sampler=NumPyOrder()),
    "stateful sampler": lambda: _loader(sampler=Counting()),
    "generator": lambda: _loader(shuffle=True, generator=torch.Generator()),
    "stream": lambda: _loader(Stream()),
    "stream with a generator": lambda: _loader(Stream(), generator=torch.Generator()),
    "batch echo of a stream": lambda: _loader(Stream(), reuse=rk.Echo(2, after="batch", shuffle=3)),
    "refurbished": lambda: _loader(_images(), shuffle=True, reuse=rk.Refurbish(2, memory=1 << 20)),
    "echoed": lambda: _loader(_images(), shuffle=True, reuse=rk.Echo(2, after="decode", memory=1 << 20)),
    "near-duplicates": lambda: _loader(shuffle=True, seed=7, redundancy=_groups()),
    "buckets": lambda: _loader(shuffle=True, importance=rk.Buckets(warmup=1)),
    "active bias": lambda: _loader(shuffle=True, importance=rk.ActiveBias(warmup=1)),
    "kakurenbo": lambda: _loader(shuffle=True, importance=rk.Kakurenbo(epochs=4)),
    "selective backprop": lambda: _loader(shuffle=True, importance=rk.SelectiveBackprop(correct=True)),
}


def _train(loader, batches=_MOST_BATCHES):
    """Samples of an epoch, of which the model is told what importance wants to know."""
    seen = []
    for batch in islice(loader, batches):
        numbers = batch[1] if isinstance(batch, (list, tuple)) else batch
        seen += numbers.tolist()
        if loader.importance is not None:
            logits = torch.stack([numbers.float(), 20 - numbers.float()], 1) / 8
            loader.feedback(logits=logits, targets=torch.zeros(len(numbers), dtype=torch.int64))
    return seen


def saved_states(make):
    """States in the middle of the first and of the second epoch, and between the two."""
    torch.manual_seed(3)
    loader, states = make(), []
    _train(loader, 2)
    for batch in (2, _MOST_BATCHES, 3):
        _train(loader, batch)
        states.append(copy.deepcopy(loader.state_dict()))
    loader.close()
    return states


def paths(value, here=()):
    """Where a state can be changed."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if (*here, key) == ("sampler", "sampler"):
            continue  # What a sampler of the user's own saves is the user's own to check.
        yield (*here, key)
        if len(here) < 4:
            yield from paths(inner, (*here, key))


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def _deep_dict(depth):
    value = {}
    for _ in range(depth):
        value = {"own": value}
    return value


# Values of another type than any field's, or outside of every field's range.
def confused():
    """New ones each time: what is drawn may be changed again."""
    return [
        None, True, False, -1, 0, 1, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30,
        1 << 20000, 1.5, -0.0, float("nan"), float("inf"), "", "x", "\udcff\x1b[2J", "x" * 5000, b"x", [], {},
        (), [1] * 3, [2**40], set(), _nested(5000), _deep_dict(5000), {1: 2}, np.int64(3), np.zeros(3),
        object(), torch.Generator(), torch.tensor([]), torch.tensor(3), torch.tensor([2**62]),
        torch.tensor([-5]),
        torch.zeros(3), torch.zeros((2, 2), dtype=torch.int64), torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(1).expand(2**40), torch.zeros(1, dtype=torch.int64).expand(2**40),
        torch.zeros(0, dtype=torch.int64), torch.tensor([True]), torch.empty(40, device="meta"),
        torch.eye(3).to_sparse(), torch.zeros(3, requires_grad=True), torch.zeros(3, dtype=torch.complex64),
        torch.nn.Parameter(torch.zeros(SIZE)), torch.ones(4)[::2],
    ]  # fmt: skip


NUMBERS = [
    0, 1, -1, 2, 7, SIZE - 1, SIZE, SIZE + 1, 623, 624, 625, 1e8, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40,
    2**62, 2**63 - 1, -(2**63), 0.5, -0.5, 1.0005, 1e-30, 1e30, 3e38, 1e300, float("inf"), -float("inf"),
    float("nan"),
]  # fmt: skip


@st.composite
def changed_tensors(draw, tensor):
    """A tensor of the same type, some of whose entries, or its length, are others."""
    if (
        tensor.layout is not torch.strided
        or tensor.is_meta
        or tensor.is_complex()
        or not tensor.is_contiguous()
        or tensor.dim() != 1
    ):
        return tensor  # confused already
    changed = tensor.detach().clone()
    if changed.dtype == torch.uint8 and len(changed) >= 5056 and draw(st.booleans()):
        return _changed_generator(draw, changed)
    for _ in range(draw(st.integers(0, 3))):
        if not changed.numel():
            break
        place = draw(
            st.sampled_from([0, 1, 2, 8, 16, 623, 624, 625, 626, 627, -1, -2, -3]) | st.integers(0, 99)
        )
        flat = changed.view(-1)
        number = draw(st.sampled_from(NUMBERS))
        if not changed.is_floating_point():
            number = 0 if number != number else max(min(number, 2**63 - 1), -(2**63))
            limits = (0, 1) if changed.dtype == torch.bool else torch.iinfo(changed.dtype)
            low, high = limits if isinstance(limits, tuple) else (limits.min, limits.max)
            number = max(min(int(number), high), low)
        else:
            number = torch.tensor(number, dtype=torch.float64).to(changed.dtype)  # inf, where it is too large
        flat[place % len(flat)] = number
    return draw(
        st.sampled_from(
            [
                changed,
                changed,
                changed,
                changed[:-1],
                changed.repeat(2),
                changed[:0],
                torch.zeros_like(changed),
            ]
        )
    )


def _changed_generator(draw, state):
    """A state of torch's generator with other numbers of words left, or another position."""
    memory = bytearray(state.numpy().tobytes())
    left = draw(st.sampled_from([-1, 0, 1, 2, 300, 623, 624, 625, 2**31 - 1]))
    position = draw(st.sampled_from([0, 1, 2, 300, 623, 624, 625, 2**32, 2**63]))
    struct.pack_into("<i", memory, 8, left)
    struct.pack_into("<Q", memory, 16, position)
    return torch.frombuffer(memory, dtype=torch.uint8).clone()


def changed_values(value):
    """Values in place of one: of its own type, or of any other."""
    if isinstance(value, torch.Tensor):
        return changed_tensors(value) | changed_tensors(value) | st.sampled_from(confused())
    if type(value) is int:
        return st.sampled_from([value - 1, value + 1, value + BATCH, *confused()]) | st.integers(
            -(2**70), 2**70
        )
    if type(value) is float:
        return st.floats() | st.sampled_from(confused())
    if type(value) is str:
        return st.text(max_size=5) | st.sampled_from([value, value + "x", *confused()])
    if type(value) is list:
        return st.sampled_from([value[:-1], value * 2, value[::-1], *confused()])
    if type(value) is dict and value:
        return st.sampled_from([dict(list(value.items())[1:]), {**value, "more": 1}, *confused()])
    return st.sampled_from(confused())


STATES = {}


@st.composite
def changed_states(draw):
    """The name of a kind of loader, and a state of one with up to three fields changed or left out."""
    kind = draw(st.sampled_from(list(LOADERS)))
    state = copy.deepcopy(draw(st.sampled_from(STATES[kind])))
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        *folder, name = draw(st.sampled_from(list(paths(state))))
        inner = state
        for key in folder:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.integers(0, 19)) == 0:
            del inner[name]
        else:
            inner[name] = draw(changed_values(inner[name]))
    return kind, state


def _position(loader):
    """What a refused state must leave as it was."""
    state = loader.state_dict()
    return state["seed"], state.get("split"), state["epoch"], state["step"], len(state["bad_reasons"])


def _refusal(loader, state):
    try:
        loader.load_state_dict(state)
    except rk.StateError as error:
        return str(error)
    return None


def outcome(kind, state):
    """Whether a state was "refused" or "loaded"; fails if it is neither, or what it yields is wrong."""
    loader, before = LOADERS[kind](), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    was = _position(loader)
    try:
        message = _refusal(loader, state)
        if message is not None:
            assert message.partition(":")[0], "the field is named"
            assert len(message) < 2000
            assert _position(loader) == was, "a refused state changes nothing"
            return "refused"
        for _ in range(2):
            loader.state_dict()
            try:
                assert set(_train(loader)) <= set(range(SIZE))
            except rk.StateError as error:  # Only drawing shows that a sampler's order is another one.
                if not str(error).startswith("sampler: "):
                    raise
                return "refused"
        loader.report()
        return "loaded"
    finally:
        loader.close()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown << 10 < _MEMORY, f"{grown >> 10} MB for one state"


def _ring(*_):
    raise TimeoutError("a state took too long")


def search(examples, number=0, *, collect=False):
    """Try so many states; how many were refused and loaded, by kind. `collect` counts faults as well."""
    found = Counter()

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(changed_states())
    def run(changed):
        signal.alarm(_SECONDS)
        try:
            found[changed[0], outcome(*changed)] += 1
        except Exception as error:
            if not collect:
                raise
            found[changed[0], f"{type(error).__name__}: {str(error)[:150]}"] += 1
        finally:
            signal.alarm(0)

    for kind, make in LOADERS.items():  # Loading draws random numbers, which a strategy must not.
        STATES[kind] = STATES.get(kind) or saved_states(make)
    previous = signal.signal(signal.SIGALRM, _ring)
    try:
        run()
    finally:
        signal.signal(signal.SIGALRM, previous)
    return found


if __name__ == "__main__":
    for (kind, what), count in sorted(search(int(sys.argv[1]), int(sys.argv[2]), collect=True).items()):
        print(f"{kind:24} {count:6} {what}")
