"""Refurbishing: a memo of a pure function. Whoever loads, the same bytes in the same order."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Sampler, SequentialSampler, Subset

import rekindle as rk
from refurbished import (
    BATCH,
    SIZE,
    STEPS,
    WAYS,
    T,
    Words,
    add_noise,
    epochs,
    foreign,
    load,
    make_images,
    ours,
)
from rekindle.choose import Refresh
from rekindle.core import counter_rng
from same import digest, same


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


# What a view is.


@pytest.mark.parametrize("way", [way for way in WAYS if way != "2 of a server"])
def test_a_view_is_what_its_definition_says(root: Path, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    first, rest = dataset.split(2)
    refresh = Refresh(SIZE, 3, 3)
    loader = load(dataset, **WAYS[way])
    used, computed = set(), set()
    for epoch in range(5):
        seen = []
        for images, labels in loader:
            ids = loader.batch.ids.numpy()
            generations = refresh.generations(ids, epoch)
            parts = list(zip(ids.tolist(), generations.tolist(), strict=True))
            used |= set(parts) if epoch < 4 else set()
            computed |= {part for part, fresh in zip(parts, loader.batch.fresh, strict=True) if fresh}
            early = counter_rng.uniforms(3, ids, generations, count=first.uniforms)
            late = counter_rng.uniforms(3, ids, epoch, count=dataset.uniforms)[:, first.uniforms :]
            for row, id_ in enumerate(ids.tolist()):
                kept = first.make(dataset.raw(id_), early[row])
                assert torch.equal(images[row], rest.make_image(kept, late[row]))
                assert labels[row] == dataset.label(id_)
            planned = generations == epoch
            assert way != "inline" or loader.batch.fresh.tolist() == planned.tolist()
            seen += ids.tolist()
        assert sorted(seen) == list(range(SIZE))
    loader.close()
    # Workers that run ahead into the next epoch may compute a part that another is about to cache, in either
    # of the two epochs: it is fresh where that happened, and somewhere it did.
    assert used <= computed


@pytest.mark.parametrize(
    ("make", "way"),
    [
        *((ours, way) for way in WAYS),
        *((foreign, way) for way in WAYS if way != "2 of a server"),
        pytest.param(foreign, "2 of a server", marks=pytest.mark.slow),  # test_golden.py has it too.
    ],
)
def test_the_same_bytes_with_any_cache_and_any_workers(root: Path, make: Any, way: str) -> None:
    nothing_kept = digest(epochs(load(make(root), memory=0)))
    loader = load(make(root), **WAYS[way])
    assert digest(epochs(loader)) == nothing_kept
    stats = loader.report().reuse.store
    assert stats.hits > SIZE
    loader.close()


def test_a_factor_of_one_is_standard_training(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    loader = load(dataset, reuse=rk.Refurbish(factor=1, split=2))
    plain = load(dataset, reuse=None)
    by_id: list[dict[int, Any]] = [{}, {}]
    for found, one in zip(by_id, (loader, plain), strict=True):
        for epoch in range(2):
            for images, _ in one:
                ids = one.batch.ids.tolist()
                found.update({(epoch, id_): image.clone() for id_, image in zip(ids, images, strict=True)})
    assert same(dict(sorted(by_id[0].items())), dict(sorted(by_id[1].items())))


ALL_KINDS = [
    T.RandomResizedCrop(40),
    T.RandomHorizontalFlip(),
    T.RandAugment(2, 9),
    T.ColorJitter(0.4, 0.4, 0.4),
    T.RandomCrop(36, padding=2),
    T.Solarize(99),
    T.ToTensor(),
    T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2)),
    T.RandomErasing(0.5),
]


def views_by_id(loader: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    for images, _ in loader:
        found.update(zip(loader.batch.ids.tolist(), map(digest, images), strict=True))
    loader.close()
    return found


@pytest.fixture(scope="module", params=[[], [T.Lambda(torch.neg)]], ids=["", "and a function"])
def standard(root: Path, request: pytest.FixtureRequest) -> tuple[Any, dict[int, str]]:
    """A dataset, and its views in training without reuse."""
    dataset = rk.open(root, transform=[*ALL_KINDS, *request.param])
    return dataset, views_by_id(load(dataset, reuse=None))


@pytest.mark.parametrize("split", range(9))
def test_whatever_the_steps_and_wherever_the_cut_fresh_views_are_those_of_standard_training(
    standard: tuple[Any, dict[int, str]], split: int
) -> None:
    dataset, whole = standard
    for workers in (0, 1 + (split == 4)):
        found = views_by_id(load(dataset, reuse=rk.Refurbish(2, split=split), num_workers=workers))
        assert found == whole


def test_views_of_one_entry_differ_in_what_is_done_each_time(root: Path) -> None:
    dataset = rk.open(root, transform=[T.RandomResizedCrop(40), T.RandomHorizontalFlip(), T.ToTensor()])
    loader = load(dataset, reuse=rk.Refurbish(factor=3, split="RandomHorizontalFlip"))
    views: dict[int, set[bytes]] = {}
    for _ in range(6):
        for images, _ in loader:
            for id_, image in zip(loader.batch.ids.tolist(), images, strict=True):
                views.setdefault(id_, set()).add(image.numpy().tobytes())
    # At most three entries in six epochs (two whole rounds, or parts of three), each one way or the other.
    assert max(map(len, views.values())) <= 6
    assert np.mean([len(seen) for seen in views.values()]) < 5
    assert max(map(len, views.values())) > 2


def test_cutting_leaves_the_data_set_as_it_was(root: Path) -> None:
    dataset = foreign(root)
    transform, steps = dataset.transform, list(dataset.transform.transforms)
    epochs(load(dataset), 2)
    assert dataset.transform is transform
    assert transform.transforms == steps
    assert steps[1].num_ops == 2


def test_a_subset_is_cut_like_the_whole(root: Path) -> None:
    for dataset in (rk.open(root, transform=STEPS), foreign(root)):
        part = Subset(dataset, range(3, 15))
        one, two = digest(epochs(load(part))), digest(epochs(load(part, num_workers=2)))
        assert one == two


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
def test_any_data_set_with_a_final_transform(way: str) -> None:
    loader = load(Words(), final_transform=add_noise, reuse=rk.Refurbish(factor=3), **WAYS[way])
    early: dict[int, set[Any]] = {}
    late: dict[int, set[Any]] = {}
    for _ in range(6):
        for batch in loader:
            for row, id_ in enumerate(batch["index"].tolist()):
                assert batch["name"][row] == f"sample {id_}"
                early.setdefault(id_, set()).add(
                    (tuple(batch["noise"][row].tolist()), float(batch["draw"][row]))
                )
                late.setdefault(id_, set()).add(tuple(batch["late"][row].tolist()))
    assert {len(values) for values in late.values()} == {6}
    assert {len(values) for values in early.values()} <= {2, 3}
    assert digest(epochs_of_dicts(way)) == digest(epochs_of_dicts("inline"))
    loader.close()


def epochs_of_dicts(way: str) -> list[Any]:
    loader = load(Words(), final_transform=add_noise, reuse=rk.Refurbish(factor=3), **WAYS[way])
    made = [{name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in batch.items()}
            for _ in range(4) for batch in loader]  # fmt: skip
    loader.close()
    return made


def test_a_final_transform_alone_is_part_of_the_sample() -> None:
    loader = load(Words(), final_transform=add_noise, reuse=None)
    workers = load(Words(), final_transform=add_noise, reuse=None, num_workers=2)
    one = [batch["late"].clone() for _ in range(2) for batch in loader]
    two = [batch["late"].clone() for _ in range(2) for batch in workers]
    assert same(one, two)
    assert len({tuple(row.tolist()) for batch in one for row in batch}) == 2 * SIZE


def spoil(sample: Any) -> Any:
    sample["noise"][:] = 0
    return sample


def test_what_is_kept_is_safe_from_functions_that_write_to_it() -> None:
    loader = load(Words(), final_transform=spoil, reuse=rk.Refurbish(factor=3))
    bare = load(Words(), final_transform=_sum_and_spoil, reuse=rk.Refurbish(factor=3), memory=0)
    kept = load(Words(), final_transform=_sum_and_spoil, reuse=rk.Refurbish(factor=3))
    for _ in range(4):
        for batch in loader:
            assert not batch["noise"].any()
        assert same([b["sum"].clone() for b in kept], [b["sum"].clone() for b in bare])


def _sum_and_spoil(sample: Any) -> Any:
    made = {"sum": float(sample["noise"].sum())}
    sample["noise"][:] = 0
    return made


def draw(image: np.ndarray) -> np.ndarray:
    return np.clip(image + np.random.randint(0, 9), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
@pytest.mark.parametrize("place", [1, 2])
def test_functions_that_draw_are_seeded_on_both_sides_of_the_cut(root: Path, way: str, place: int) -> None:
    steps = [T.Resize((30, 30)), T.Lambda(draw), T.Lambda(draw), T.ToTensor()]
    reuse = rk.Refurbish(factor=3, split=place)
    bare = digest(epochs(load(rk.open(root, transform=steps), reuse=reuse, memory=0)))
    loader = load(rk.open(root, transform=steps), reuse=reuse, **WAYS[way])
    assert digest(epochs(loader)) == bare
    loader.close()


# The order.


def test_a_sampler_keeps_its_order_and_loses_the_balance(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    with pytest.warns(UserWarning, match="batches cannot be balanced"):
        loader = load(dataset, shuffle=None, sampler=SequentialSampler(dataset))
    refresh = Refresh(SIZE, 3, 3)
    for epoch in range(4):
        seen = []
        for _ in loader:
            ids = loader.batch.ids
            assert loader.batch.fresh.tolist() == (refresh.generations(ids, epoch) == epoch).tolist()
            seen += ids.tolist()
        assert seen == list(range(SIZE))
    with pytest.warns(UserWarning, match="shuffle=False") as caught:
        in_order = rk.DataLoader(dataset, batch_size=BATCH, seed=3, reuse=rk.Refurbish(3, split=2))
    assert caught[0].filename == __file__  # The line that made the loader, not one further out.
    assert same(epochs(in_order, 4), epochs(load_quietly(dataset), 4))


def load_quietly(dataset: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(dataset, shuffle=None, sampler=SequentialSampler(dataset))


class Names(Sampler[str]):
    def __iter__(self) -> Any:
        return iter(["a", "b"])

    def __len__(self) -> int:
        return 2


def test_samples_must_be_known_by_integers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = load(Words(), shuffle=None, sampler=Names(), final_transform=add_noise)
    with pytest.raises(rk.ArgumentError, match="yielded 'a'"):
        list(loader)
