"""Side by side with torch's DataLoader: streams, workers and what goes wrong in them."""

import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import (
    Dataset,
    IterableDataset,
    get_worker_info,
)

import rekindle as rk
from covering import each_value
from same import same
from torch_datasets import (
    WORKERS,
    Broken,
    BrokenStream,
    Held,
    Numbered,
    OddError,
    OddlyBroken,
    SeesEnvironment,
    Shaped,
    Sharded,
    Stream,
    Torch,
    WhoAmI,
    WithEpoch,
    assert_same_epochs,
    fail_to_start,
    summed,
)

# Iterable datasets.


@WORKERS
@pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(None, False), *each_value([1, 3, 10, 30], [False, True])]
)
def test_a_stream_is_batched_as_torch_does(batch_size, drop_last, num_workers):
    assert_same_epochs(Stream(), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)


@pytest.mark.parametrize(
    ("sizes", "batch_size"),
    each_value([(11, 4), (4, 11), (0, 5), (5, 0), (0, 0)], [3, None, 2]),
    ids=str,
)
def test_uneven_shares_of_workers_are_dealt_as_torch_does(sizes, batch_size):
    assert_same_epochs(Sharded(sizes), batch_size=batch_size, num_workers=2)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_iterable_datasets_start_again_in_every_epoch(persistent_workers):
    assert_same_epochs(
        Sharded(), epochs=3, batch_size=4, num_workers=2, persistent_workers=persistent_workers
    )


@WORKERS
def test_an_exception_in_a_stream_keeps_its_type(num_workers):
    iterator = iter(rk.DataLoader(BrokenStream(), num_workers=num_workers))
    assert next(iterator).item() == 1
    with pytest.raises(KeyError, match="no third"):
        list(iterator)


def test_a_stream_without_workers_leaves_the_global_generators_alone():
    class DrawingStream(IterableDataset):
        def __iter__(self):
            for _ in range(40):
                yield random.random(), np.random.rand(), torch.rand(1)

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    loader = rk.DataLoader(DrawingStream(), batch_size=1, seed=1)
    batches = list(loader)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert len({batch[0].item() for batch in batches}) == 40
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


# Workers.


@WORKERS
def test_worker_info_is_torchs_in_every_sample(num_workers):
    def batches(loader):
        generator = torch.Generator().manual_seed(5)
        made = loader(WhoAmI(), batch_size=3, num_workers=num_workers, generator=generator)
        return [list(made), list(made)]

    assert same(batches(rk.DataLoader), batches(Torch))
    assert get_worker_info() is None


def test_worker_init_fn_runs_in_every_worker():
    assert_same_epochs(SeesEnvironment(), batch_size=2, num_workers=2, worker_init_fn=Numbered(), epochs=2)
    assert "REKINDLE_TEST_WORKER" not in os.environ


class SeesSeed(SeesEnvironment):
    def __getitem__(self, index):
        return torch.initial_seed()


def set_seed(worker):
    torch.manual_seed(12345 + worker)


def test_a_seed_that_worker_init_fn_sets_is_what_samples_see():
    assert_same_epochs(SeesSeed(), batch_size=2, num_workers=2, worker_init_fn=set_seed, epochs=2)


@pytest.mark.parametrize("options", [{}, {"worker_init_fn": Numbered()}])
def test_a_seed_that_samples_see_is_their_own_where_the_script_sets_none(options):
    inline = [batch.tolist() for batch in rk.DataLoader(SeesSeed(), batch_size=2, seed=1)]
    assert len({seed for batch in inline for seed in batch}) == len(SeesSeed())
    loader = rk.DataLoader(SeesSeed(), batch_size=2, seed=1, num_workers=2, **options)
    assert [batch.tolist() for batch in loader] == inline


def test_an_exception_in_worker_init_fn_is_raised_here():
    loader = rk.DataLoader(range(4), num_workers=2, worker_init_fn=fail_to_start)
    with pytest.raises(OSError, match="found no disk"):
        list(loader)


@pytest.mark.parametrize(
    "context",
    ["fork", "spawn", multiprocessing.get_context("forkserver"), multiprocessing.get_context("fork")],
    ids=["fork by name", "spawn by name", "forkserver as object", "fork as object"],
)
def test_a_start_method_may_be_given_by_name_or_as_a_context(context):
    loader = rk.DataLoader(Shaped("tuple", 6), batch_size=4, num_workers=1, multiprocessing_context=context)
    assert same(list(loader), list(Torch(Shaped("tuple", 6), batch_size=4)))
    given = context if isinstance(context, str) else context.get_start_method()
    assert loader.multiprocessing_context.get_start_method() == given


@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_prefetch_factor_changes_no_batch(prefetch_factor):
    assert_same_epochs(Shaped("tuple"), batch_size=2, num_workers=2, prefetch_factor=prefetch_factor)


def test_persistent_workers_are_the_same_processes_in_the_next_epoch():
    class Pid(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return os.getpid()

    loader = rk.DataLoader(Pid(), batch_size=4, num_workers=2, persistent_workers=True)
    first, second = torch.cat(list(loader)), torch.cat(list(loader))
    assert set(first.tolist()) == set(second.tolist())
    assert os.getpid() not in first.tolist()


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_changed_data_set_is_seen_unless_workers_persist(persistent_workers):
    def epochs(loader):
        dataset = WithEpoch()
        made = loader(dataset, batch_size=3, num_workers=2, persistent_workers=persistent_workers)
        batches = []
        for epoch in range(3):
            dataset.set_epoch(epoch)
            batches.append(torch.cat(list(made)).tolist())
        return batches

    ours = epochs(rk.DataLoader)
    assert ours == epochs(Torch)
    assert ours[2][0] == (0 if persistent_workers else 200)


def test_without_workers_a_changed_data_set_is_seen_at_once():
    dataset = WithEpoch()
    iterator = iter(rk.DataLoader(dataset, batch_size=2))
    assert next(iterator).tolist() == [0, 1]
    dataset.set_epoch(1)
    assert next(iterator).tolist() == [102, 103]


# Exceptions.


@WORKERS
@pytest.mark.parametrize("error", [ValueError, KeyError, FileNotFoundError, RuntimeError])
def test_an_exception_keeps_its_type_and_names_the_sample(error, num_workers):
    loader = rk.DataLoader(Broken((5,), error), batch_size=4, num_workers=num_workers)
    with pytest.raises(error) as caught:
        list(loader)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "cannot read number 5" in told
    assert "sample 5" in told
    if num_workers:
        assert "in DataLoader worker process" in told
        assert "Original Traceback" in told
        assert "in __getitem__" in told


@WORKERS
def test_an_exception_that_cannot_be_rebuilt_still_says_what_happened(num_workers):
    expected = RuntimeError if num_workers else OddError
    with pytest.raises(expected, match="odd"):
        list(rk.DataLoader(OddlyBroken(), num_workers=num_workers))


@WORKERS
def test_iteration_goes_on_after_an_exception_as_torchs_does(num_workers):
    def outcome(loader):
        iterator = iter(loader(Broken((1, 9)), batch_size=2, num_workers=num_workers))
        seen = []
        while True:
            try:
                seen.append(next(iterator).tolist())
            except ValueError:
                seen.append("failed")
            except StopIteration:
                return seen

    ours = outcome(rk.DataLoader)
    assert ours == outcome(Torch)
    assert ours == ["failed", [2, 3], [4, 5], [6, 7], "failed", [10, 11]]


@WORKERS
def test_a_loader_can_be_used_again_after_an_exception(num_workers):
    dataset = Broken((5,))
    loader = rk.DataLoader(dataset, batch_size=4, num_workers=num_workers)
    with pytest.raises(ValueError, match="number 5"):
        list(loader)
    dataset.bad = ()
    assert torch.cat(list(loader)).tolist() == list(range(12))


@WORKERS
def test_an_exception_in_the_collate_function_keeps_its_type(num_workers):
    with pytest.raises(TypeError, match="unsupported operand"):
        list(rk.DataLoader(["a", "b"], collate_fn=summed, num_workers=num_workers))


@WORKERS
def test_an_exception_in_the_sampler_keeps_its_type(num_workers):
    def sampler():
        yield 1
        raise LookupError("no second index")

    class Failing:
        def __iter__(self):
            return sampler()

    loader = rk.DataLoader(range(4), sampler=Failing(), num_workers=num_workers)
    with pytest.raises(LookupError, match="no second index"):
        list(loader)


@WORKERS
def test_what_no_collate_function_understands_raises_torchs_error(num_workers):
    with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
        list(rk.DataLoader([object(), object()], num_workers=num_workers))


def test_a_timeout_is_an_error_and_does_not_wait_for_the_sample():
    loader = rk.DataLoader(Held(), num_workers=1, timeout=0.3)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds"):
        next(iter(loader))
