"""Side by side with torch's DataLoader: the same batches, in the same order."""

import itertools

import pytest
import torch
import torch.utils.data
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import rekindle as rk
from covering import each_pair
from same import same
from torch_datasets import (
    KINDS,
    WORKERS,
    AtOnce,
    Bag,
    Held,
    Keyed,
    OwnSampler,
    Ragged,
    Shaped,
    Torch,
    as_is,
    assert_same_epochs,
    padded,
    seeded_epochs,
    summed,
)

# What a batch is.


@WORKERS
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_structure_are_torchs(kind, num_workers):
    assert_same_epochs(Shaped(kind), epochs=1, batch_size=5, num_workers=num_workers)


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 23, 40])
def test_batches_of_any_size_are_torchs(batch_size, drop_last, num_workers):
    assert_same_epochs(Shaped("tuple"), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)


@WORKERS
@pytest.mark.parametrize("kind", ["tensor", "dict", "string"])
def test_samples_come_alone_without_a_batch_size(kind, num_workers):
    assert_same_epochs(Shaped(kind, 7), batch_size=None, num_workers=num_workers)


@WORKERS
def test_a_sampler_of_lists_without_a_batch_size_reaches_the_data_set(num_workers):
    tensors = torch.arange(20).view(10, 2)
    assert_same_epochs(
        tensors,
        batch_size=None,
        sampler=BatchSampler(SequentialSampler(range(10)), 3, False),
        num_workers=num_workers,
    )


@WORKERS
@pytest.mark.parametrize("collate_fn", [as_is, summed])
def test_a_collate_function_may_return_anything(collate_fn, num_workers):
    assert_same_epochs(list(range(10)), batch_size=3, collate_fn=collate_fn, num_workers=num_workers)


@WORKERS
def test_a_collate_function_may_return_objects_with_tensors(num_workers):
    assert_same_epochs(Shaped("large"), batch_size=4, collate_fn=Bag, num_workers=num_workers, epochs=1)


@WORKERS
def test_ragged_samples_raise_torchs_kind_of_error_that_says_what_to_add(num_workers):
    with pytest.raises(RuntimeError):
        list(Torch(Ragged(), batch_size=2))  # Its workers may take ten seconds to end.
    with pytest.raises(RuntimeError, match=r"differ in shape: \(1,\) first, \(2,\) in row 1.*collate_fn"):
        list(rk.DataLoader(Ragged(), batch_size=2, num_workers=num_workers))


@WORKERS
def test_pillow_images_raise_torchs_kind_of_error_that_says_what_to_add(num_workers):
    images = [(Image.new("RGB", (4, 3)), 0), (Image.new("RGB", (4, 3)), 1)]
    for samples in (images, [{"image": image} for image, _ in images]):
        with pytest.raises(TypeError):
            list(Torch(samples, batch_size=2))
        with pytest.raises(rk.PillowSamplesError, match=r"a transform that ends in a tensor.*ToTensor"):
            list(rk.DataLoader(samples, batch_size=2, num_workers=num_workers))


@WORKERS
def test_ragged_samples_can_be_padded(num_workers):
    assert_same_epochs(Ragged(), batch_size=4, collate_fn=padded, num_workers=num_workers)


@WORKERS
def test_samples_that_change_their_type_are_collated_as_torch_does(num_workers):
    assert_same_epochs(Shaped("mixed types"), batch_size=4, num_workers=num_workers, epochs=1)


@WORKERS
def test_get_items_is_asked_for_whole_batches(num_workers):
    assert_same_epochs(AtOnce(), batch_size=4, num_workers=num_workers)


@WORKERS
def test_tensors_in_memory_are_gathered_as_torch_does(num_workers):
    dataset = TensorDataset(torch.randn(20, 3), torch.arange(20), torch.rand(20) > 0.5)
    assert_same_epochs(dataset, batch_size=6, num_workers=num_workers)
    assert_same_epochs(
        dataset,
        batch_size=6,
        num_workers=num_workers,
        sampler=OwnSampler([3, 19, 3, 0, 7, 1]),
    )


@WORKERS
def test_indices_may_count_from_the_end(num_workers):
    dataset = TensorDataset(torch.arange(20))
    assert_same_epochs(dataset, batch_size=2, sampler=[-1, 3, -20], num_workers=num_workers)


@WORKERS
def test_an_index_out_of_range_is_an_index_error(num_workers):
    for dataset in (TensorDataset(torch.arange(20)), Shaped("tuple")):
        with pytest.raises(IndexError):
            list(rk.DataLoader(dataset, sampler=[3, 99], num_workers=num_workers))


def test_a_sample_that_requires_grad_after_the_first_is_collated_as_torch_does():
    samples = [torch.ones(2), torch.ones(2, requires_grad=True)]
    (batch,) = rk.DataLoader(samples, batch_size=2)
    assert batch.requires_grad
    for loader in (rk.DataLoader, Torch):  # Neither can send a batch with a history to another process.
        with pytest.raises(RuntimeError, match=r"requires.grad"):
            list(loader(samples, batch_size=2, num_workers=1))


@WORKERS
def test_a_plain_list_is_a_data_set(num_workers):
    assert_same_epochs([1.5, 2.5, 3.5], batch_size=2, num_workers=num_workers)


def test_sparse_samples_come_alone_without_workers_as_with_torch():
    samples = [torch.eye(2).to_sparse() * number for number in range(3)]
    for batch, sample in zip(rk.DataLoader(samples, batch_size=None), samples, strict=True):
        assert torch.equal(batch.to_dense(), sample.to_dense())


@WORKERS
def test_an_empty_data_set_gives_no_batch(num_workers):
    assert list(rk.DataLoader([], batch_size=2, num_workers=num_workers)) == []


@WORKERS
def test_a_batch_belongs_to_whoever_holds_it(num_workers):
    loader = rk.DataLoader(Shaped("large"), batch_size=2, num_workers=num_workers)
    held = list(itertools.chain(loader, loader))
    for batch in held:
        batch += 1
    assert [batch[0, 0, 0].item() for batch in held] == [*range(1, 24, 2)] * 2


# In which order.


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_with_a_generator_the_order_and_the_generators_state_are_torchs(num_workers, persistent_workers):
    ours, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    arguments = {
        "batch_size": 4,
        "shuffle": True,
        "num_workers": num_workers,
        "persistent_workers": persistent_workers,
    }
    our_loader = rk.DataLoader(range(17), generator=ours, **arguments)
    their_loader = Torch(range(17), generator=theirs, **arguments)
    for _ in range(3):
        assert same(list(our_loader), list(their_loader))
        assert torch.equal(ours.get_state(), theirs.get_state())


RANDOM_SAMPLERS = {
    "random": lambda: RandomSampler(range(20)),
    "replacement": lambda: RandomSampler(range(20), replacement=True, num_samples=50),
    "weighted": lambda: WeightedRandomSampler([1.0, 5.0, 2.0, 0.5] * 5, 30),
    "subset": lambda: SubsetRandomSampler([3, 5, 7, 11, 13]),
}


@pytest.mark.parametrize(
    ("sampler", "num_workers", "seed_before"), each_pair(RANDOM_SAMPLERS, [0, 1], [False, True])
)
def test_a_random_sampler_under_a_global_seed_gives_torchs_order(sampler, num_workers, seed_before):
    def make(loader):
        return loader(range(20), batch_size=4, sampler=RANDOM_SAMPLERS[sampler](), num_workers=num_workers)

    ours, our_state = seeded_epochs(lambda: make(rk.DataLoader), seed_before=seed_before)
    theirs, their_state = seeded_epochs(lambda: make(Torch), seed_before=seed_before)
    assert same(ours, theirs)
    assert torch.equal(our_state, their_state)


@WORKERS
def test_a_sampler_of_ones_own_is_followed(num_workers):
    assert_same_epochs(
        Shaped("tuple"), batch_size=3, sampler=OwnSampler([5, 5, 0, 22, 1]), num_workers=num_workers
    )
    assert_same_epochs(Shaped("tuple"), batch_size=2, sampler=[5, 5, 0, 22, 1], num_workers=num_workers)


@WORKERS
def test_a_batch_sampler_may_give_batches_of_any_size(num_workers):
    batches = [[0, 1], [5], [2, 2, 2, 7, 8, 9, 10], [3, 4], [22, 21, 20, 19]]
    assert_same_epochs(Shaped("dict"), batch_sampler=batches, num_workers=num_workers)
    assert_same_epochs(Shaped("large"), batch_sampler=OwnSampler(batches), num_workers=num_workers)


@WORKERS
def test_a_batch_sampler_that_draws_at_once_is_asked_once_per_epoch(num_workers):
    """With workers, torch asks twice, so that its order depends on whether there are any."""

    class Counts:
        asked = 0

        def __iter__(self):
            self.asked += 1
            return iter([[self.asked, 0], [self.asked]])

    with rk.DataLoader(range(9), batch_sampler=Counts(), num_workers=num_workers) as loader:
        assert [[batch.tolist() for batch in loader] for _ in range(2)] == [[[1, 0], [1]], [[2, 0], [2]]]


@WORKERS
def test_a_sampler_may_give_keys_that_are_no_integers(num_workers):
    assert_same_epochs(Keyed(), batch_size=2, sampler=["a", ("b", 1), 2.5, None], num_workers=num_workers)


@WORKERS
def test_shuffled_epochs_have_every_sample_once_and_differ(num_workers):
    loader = rk.DataLoader(range(50), batch_size=8, shuffle=True, num_workers=num_workers)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_global_seed_makes_a_shuffled_run_repeatable_with_any_number_of_workers():
    def make(num_workers):
        return lambda: rk.DataLoader(range(50), batch_size=8, shuffle=True, num_workers=num_workers)

    runs = [seeded_epochs(make(num_workers))[0] for num_workers in (0, 2, 0)]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


def test_batches_out_of_order_are_all_there():
    dataset = Held(8)
    loader = rk.DataLoader(
        dataset, batch_size=1, num_workers=2, in_order=False, multiprocessing_context="fork"
    )
    iterator = iter(loader)
    first = next(iterator).item()
    assert first != 0, "a slow batch held up the others"
    dataset.allowed.set()
    assert sorted([first, *(batch.item() for batch in iterator)]) == list(range(8))
    assert sorted(batch.item() for batch in loader) == list(range(8))
