"""Refurbishing: a memo of a pure function. What is cached, lost or damaged changes no byte of any batch."""

import logging
import os
import random
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.torchvision_on_cpu import torchvision
from PIL import Image
from torch.utils.data import Dataset, Sampler, SequentialSampler, Subset

import rekindle as rk
from photographs import photographs
from rekindle.choose import Refresh
from rekindle.core import counter_rng
from same import digest, same

T = rk.transforms
SIZE, BATCH = 26, 6
STEPS = [T.RandomResizedCrop(40), T.RandAugment(2, 9), T.RandomHorizontalFlip(), T.ToTensor()]
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "2 processes": {"num_workers": 2, "executor": "processes"},
    "2 spawned": {
        "num_workers": 2,
        "executor": "processes",
        "multiprocessing_context": "spawn",
        "persistent_workers": True,
    },
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(SIZE):
        photograph = photographs()[number % 8][:90, number : number + 100]
        kind = folder / f"class-{number % 3}"
        kind.mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(photograph)).save(kind / f"{number:03}.jpg")
    return folder


class Folder(Dataset[Any]):
    """A dataset as torchvision's are: samples, a loader, a transform that is a Compose."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.samples = sorted(str(path) for path in root.rglob("*.jpg"))
        self.transform = transform
        self.loaded = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.loaded += 1
        with Image.open(self.samples[index]) as image:
            return self.transform(image.convert("RGB")), index


def ours(root: Path) -> Any:
    return rk.open(root, transform=STEPS)


def foreign(root: Path) -> Folder:
    V = torchvision.transforms  # noqa: N806
    return Folder(
        root,
        V.Compose([V.RandomResizedCrop(40), V.RandAugment(2, 9), V.RandomHorizontalFlip(), V.ToTensor()]),
    )


def load(dataset: Any, **settings: Any) -> Any:
    reuse = rk.Refurbish(factor=3, split=2)
    return rk.DataLoader(
        dataset, **{"batch_size": BATCH, "shuffle": True, "seed": 3, "reuse": reuse, **settings}
    )


def epochs(loader: Any, count: int = 5) -> list[Any]:
    return [[part.clone() for part in batch] for _ in range(count) for batch in loader]


# What a view is.


@pytest.mark.parametrize("way", [way for way in WAYS if way != "2 spawned"])
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
        *((foreign, way) for way in WAYS if way != "2 spawned"),
        pytest.param(foreign, "2 spawned", marks=pytest.mark.slow),  # test_golden.py has it too.
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


@pytest.mark.parametrize("split", range(9))
@pytest.mark.parametrize("more", [[], [T.Lambda(torch.neg)]], ids=["", "and a function"])
def test_whatever_the_steps_and_wherever_the_cut_fresh_views_are_those_of_standard_training(
    root: Path, split: int, more: list[Any]
) -> None:
    dataset = rk.open(root, transform=[*ALL_KINDS, *more])

    def views(loader: Any) -> dict[int, str]:
        found: dict[int, str] = {}
        for images, _ in loader:
            found.update(zip(loader.batch.ids.tolist(), map(digest, images), strict=True))
        loader.close()
        return found

    whole = views(load(dataset, reuse=None))
    for workers in (0, 2):
        assert views(load(dataset, reuse=rk.Refurbish(2, split=split), num_workers=workers)) == whole


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


# final_transform.


class Words(Dataset[Any]):
    """No steps, and samples that are dicts."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return {
            "index": index,
            "noise": np.random.rand(3),
            "name": f"sample {index}",
            "draw": random.random(),
        }


def add_noise(sample: Any) -> Any:
    return {**sample, "late": torch.rand(2)}


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


# Where to cut.


def test_the_cut_is_chosen_once_logged_and_kept_in_the_state(root: Path, caplog: Any) -> None:
    dataset = rk.open(root, transform=STEPS)
    auto = rk.Refurbish(factor=3, min_diversity=0.9)
    with caplog.at_level(logging.INFO, "rekindle"):
        loader = load(dataset, reuse=auto)
        batches = epochs(loader, 1)
    told = [record.message for record in caplog.records if "split before" in record.message]
    assert len(told) == 1
    state = loader.state_dict()
    assert type(state["split"]) is int
    assert f"split={state['split']}" in told[0]
    given = load(dataset, reuse=rk.Refurbish(factor=3, split=state["split"]))
    assert same(epochs(given, 1), batches)
    batches = epochs(loader, 2)
    resumed = load(dataset, reuse=auto, num_workers=2)
    resumed.load_state_dict(state)
    caplog.clear()
    assert same(epochs(resumed, 2), batches)
    assert not caplog.records


def test_a_cut_that_leaves_too_little_diversity_is_not_chosen(root: Path) -> None:
    slow = T.GaussianBlur(23, sigma=3)
    steps = [T.RandomResizedCrop(80), slow, T.RandomHorizontalFlip(), T.ToTensor()]
    loader = load(rk.open(root, transform=steps), reuse=rk.Refurbish(factor=3, min_diversity=0.9))
    next(iter(loader))
    assert loader.state_dict()["split"] == 0  # Only the decoded image may be kept: 58 % is left of a flip.
    loose = load(rk.open(root, transform=steps), reuse=rk.Refurbish(factor=3, min_diversity=0.5))
    next(iter(loose))
    assert loose.state_dict()["split"] == 2


def test_foreign_steps_are_known_or_judged_by_drawing(root: Path) -> None:
    dataset = foreign(root)
    loader = load(dataset, reuse=rk.Refurbish(factor=3))
    epochs(loader, 3)
    assert loader.state_dict()["split"] in (1, 2)
    assert 0.9 < loader.report().reuse.expected <= 1
    V = torchvision.transforms  # noqa: N806
    unknown = Folder(root, V.Compose([V.Resize((40, 40)), V.Lambda(_coin), V.ToTensor()]))
    loader = load(unknown, reuse=rk.Refurbish(factor=3, split=1))
    epochs(loader, 3)
    assert loader.report().reuse.expected.standard == pytest.approx(1.75, abs=0.02)


@pytest.mark.parametrize(("said", "views"), [(None, 1.75), (1, 1), (2, 1.75), (np.inf, 3)])
def test_functions_say_how_many_outcomes_they_have_or_are_judged_by_drawing(
    root: Path, said: float | None, views: float
) -> None:
    dataset = rk.open(
        root, transform=[T.Resize((40, 40)), T.Lambda(_mirrored_or_not, diversity=said), T.ToTensor()]
    )
    loader = load(dataset, reuse=rk.Refurbish(factor=3, split=1))
    epochs(loader, 3)
    assert loader.report().reuse.expected.standard == pytest.approx(views, abs=0.02)


def _mirrored_or_not(image: Any) -> Any:
    return np.ascontiguousarray(image[:, ::-1]) if random.random() < 0.5 else image


def _coin(image: Any) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"factor": 0.5}, "factor is 0.5"),
        ({"factor": "3"}, "factor is '3'"),
        ({"factor": True}, "factor is True"),
        ({"split": 1.5}, "split is 1.5"),
        ({"balance": "bytes"}, "balance is 'bytes'"),
        ({"min_diversity": 2}, "min_diversity is 2"),
        ({"epochs": 0}, "epochs is 0"),
        ({"disk": 5}, "disk is 5"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(rk.ArgumentError, match=told):
        rk.Refurbish(**settings)


def test_what_cannot_be_cut_is_told_with_the_way_out(root: Path) -> None:
    with pytest.raises(rk.ArgumentError, match=r"Words has no steps .*final_transform"):
        load(Words())
    with pytest.raises(rk.ArgumentError, match="the steps are 0: RandomResizedCrop"):
        load(rk.open(root, transform=STEPS), reuse=rk.Refurbish(split="Blur"))
    with pytest.raises(rk.ArgumentError, match="reuse is 3"):
        load(Words(), reuse=3)
    with pytest.raises(rk.ArgumentError, match="final_transform is 3"):
        load(Words(), final_transform=3, reuse=None)

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(rk.ArgumentError, match=r"Use rk\.Echo"):
        load(Stream(), shuffle=None)


# Faults.


@pytest.mark.parametrize("make", [ours, foreign])
def test_a_killed_worker_changes_nothing(root: Path, make: Any) -> None:
    expected = epochs(load(make(root)), 3)
    loader = load(make(root), num_workers=2, executor="processes")
    batches = []
    for epoch in range(3):
        for step, batch in enumerate(iterator := iter(loader)):
            batches.append([part.clone() for part in batch])
            if step == 1:
                os.kill(iterator._workers[epoch % 2].pid, signal.SIGKILL)
    assert same(batches, expected)
    assert loader.report().replaced_workers >= 2  # the last may go unnoticed if nothing was left to do
    loader.close()


@pytest.mark.parametrize("way", ["inline", "2 threads", "2 processes"])
def test_resumed_anywhere_it_goes_on_with_the_same_bytes(root: Path, way: str) -> None:
    dataset = rk.open(root, transform=STEPS)
    whole = epochs(load(dataset), 4)
    steps = len(load(dataset))
    loader = load(dataset, num_workers=1)
    epochs(loader, 1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    resumed = load(dataset, **WAYS[way])
    resumed.load_state_dict(state)
    assert same(epochs(resumed, 3), whole[steps + 2 :])
    with pytest.raises(rk.StateError, match="reuse: the state was saved with"):
        load(dataset, reuse=rk.Refurbish(factor=2, split=2)).load_state_dict(state)
    loader.close(), resumed.close()


def test_bad_samples_are_passed_over(root: Path, tmp_path: Path) -> None:
    for path in root.rglob("*.jpg"):
        target = tmp_path / path.relative_to(root)
        target.parent.mkdir(exist_ok=True)
        data = path.read_bytes()
        target.write_bytes(data[: len(data) // 2] if path.name == "007.jpg" else data)
    made = []
    for way in ("inline", "2 threads", "2 processes"):
        dataset = rk.open(tmp_path, transform=STEPS)
        loader = load(dataset, on_error="skip", error_budget=0.2, **WAYS[way])
        made.append(digest(epochs(loader, 4)))
        loader.close()
    assert len(set(made)) == 1
    with pytest.raises(rk.DecodeError, match=r"007\.jpg"):
        epochs(load(rk.open(tmp_path, transform=STEPS)), 1)


@pytest.mark.parametrize("split", ["auto", 2])
def test_bad_samples_hold_up_neither_the_choice_of_the_cut_nor_the_plan(
    root: Path, tmp_path: Path, split: Any
) -> None:
    """Half of the files are broken or gone, so some of those that are measured are, too."""
    for number, path in enumerate(sorted(root.rglob("*.jpg"))):
        target = tmp_path / path.relative_to(root)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes()[:300] if number % 4 == 0 else path.read_bytes())
    dataset = rk.open(tmp_path, transform=STEPS)
    gone = [path for path, _ in dataset.samples[1::4]]
    for path in gone:
        os.unlink(path)
    reuse = rk.Refurbish(factor=3, split=split)
    loader = load(dataset, reuse=reuse, on_error="skip", error_budget=1)
    ids = {id_ for _ in loader for id_ in loader.batch.ids.tolist()}
    assert ids == {number for number in range(SIZE) if number % 4 > 1}


def test_a_data_set_that_is_changed_between_epochs_is_not_taken_from_the_cache() -> None:
    class Scaled(Words):
        factor = 1

        def __getitem__(self, index: int) -> Any:
            return {"value": index * self.factor}

    dataset = Scaled()
    loader = load(dataset, final_transform=_unchanged, reuse=rk.Refurbish(factor=3))
    for _ in loader:
        pass
    dataset.factor = 10
    values = sorted(value for batch in loader for value in batch["value"].tolist())
    assert values == [10 * index for index in range(SIZE)]


def _unchanged(sample: Any) -> Any:
    return sample


# The cache.


def test_what_does_not_fit_is_computed_and_the_dearest_are_kept(root: Path) -> None:
    dataset = rk.open(root, transform=STEPS)
    loader = load(dataset, memory=40 * 40 * 3 * 10)
    with pytest.warns(UserWarning, match=r"room for \d+ of 26 samples"):
        batches = epochs(loader)
    assert digest(batches) == digest(epochs(load(dataset)))
    reuse = loader.report().reuse
    assert 0.2 < reuse.fits < 0.5
    assert 0 < reuse.store.entries <= 13


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd", "jpeg", rk.Jpeg(60)], ids=str)
def test_codecs_give_the_same_bytes_found_or_made(root: Path, codec: Any) -> None:
    if codec in ("lz4", "zstd"):
        pytest.importorskip({"lz4": "lz4", "zstd": "zstandard"}[codec])
    dataset = rk.open(root, transform=STEPS)
    reuse = rk.Refurbish(factor=3, split=2, codec=codec)
    bare = digest(epochs(load(dataset, reuse=reuse, memory=0)))
    assert digest(epochs(load(dataset, reuse=reuse, num_workers=2))) == bare


def on_disk(root: Path, folder: Path, steps: Any = STEPS, **settings: Any) -> Any:
    """Nothing fits the memory: all is on disk."""
    reuse = rk.Refurbish(factor=3, split=2, memory=0, disk=folder)
    return load(rk.open(root, transform=steps), **{"reuse": reuse, "num_workers": 2, **settings})


def test_a_second_run_finds_the_cache_on_disk(root: Path, tmp_path: Path) -> None:
    first = on_disk(root, tmp_path, num_workers=0)  # which prepare no part of a third epoch
    expected = digest(epochs(first, 2))
    first.close()
    del first
    again = on_disk(root, tmp_path, num_workers=0)
    assert digest(epochs(again, 1)) == digest(epochs(load(rk.open(root, transform=STEPS)), 1))
    stats = again.report().reuse.store
    # The samples that were refreshed in epoch 1 are there in that generation.
    assert SIZE / 2 < stats.hits < SIZE
    assert expected == digest(epochs(load(rk.open(root, transform=STEPS)), 2))


@pytest.mark.parametrize("change", ["steps", "seed", "file"])
def test_a_changed_pipeline_or_file_does_not(root: Path, tmp_path: Path, change: str) -> None:
    images = tmp_path / "images"
    shutil.copytree(root, images)
    first = on_disk(images, tmp_path / "cache")
    epochs(first, 1)
    first.close()
    del first
    steps, seed = STEPS, 3
    if change == "steps":
        steps = [T.RandomResizedCrop(40, scale=(0.5, 1)), *STEPS[1:]]
    elif change == "seed":
        seed = 4
    else:
        path = next(images.rglob("000.jpg"))
        path.write_bytes(next(images.rglob("004.jpg")).read_bytes())
    again = on_disk(images, tmp_path / "cache", steps, seed=seed, num_workers=0)
    batches = epochs(again, 1)
    assert again.report().reuse.store.hits == 0
    assert digest(batches) == digest(epochs(load(rk.open(images, transform=steps), seed=seed), 1))


@pytest.mark.parametrize("damage", ["delete", "flip", "truncate"])
def test_damage_to_the_cache_while_training_changes_no_byte(root: Path, tmp_path: Path, damage: str) -> None:
    expected = digest(epochs(load(rk.open(root, transform=STEPS)), 5))
    loader = on_disk(root, tmp_path)
    batches = epochs(loader, 1)
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            assert files or damage == "delete"
            for path in random.sample(files, -(-len(files) // 2)):
                if damage == "delete":
                    path.unlink()
                elif damage == "truncate":
                    os.truncate(path, path.stat().st_size // 2)
                else:
                    data = bytearray(path.read_bytes())
                    for place in random.sample(range(len(data)), min(200, len(data))):
                        data[place] ^= 1 << random.randrange(8)
                    with path.open("r+b") as file:
                        file.write(data)
            batches += epochs(loader, 1)
    assert digest(batches) == expected
    loader.close()


# The report.


def test_the_report_tells_what_was_saved_and_what_it_cost(root: Path) -> None:
    loader = load(rk.open(root, transform=STEPS), num_workers=2)
    epochs(loader, 7)
    reuse = loader.report().reuse
    assert reuse.planned_share == pytest.approx((1 + 6 / 3) / 7, abs=0.02)
    # Of two workers, one may compute what the other is about to cache.
    assert reuse.planned_share <= reuse.fresh_share < 1
    assert reuse.seconds_saved > 0
    assert reuse.store.entries == SIZE
    assert reuse.store.nbytes > SIZE * 40 * 40 * 3
    assert reuse.expected.standard == pytest.approx(7)
    # By chance: operations and flips may come twice, and the first round is shorter.
    assert reuse.counted.samples == 9
    assert reuse.counted.views == 7
    assert reuse.counted.distinct == pytest.approx(reuse.expected.expected, rel=0.06)
    text = str(loader.report())
    assert "split before RandAugment[1] (split=2)" in text
    assert "diversity 0.9" in text
    told = loader.report().to_dict()["reuse"]
    assert told["cache_entries"] == SIZE


def test_the_page_has_it_as_well(root: Path, tmp_path: Path) -> None:
    loader = load(rk.open(root, transform=STEPS))
    epochs(loader, 2)
    loader.report().to_html(tmp_path / "report.html")
    assert "split before RandAugment[1]" in (tmp_path / "report.html").read_text()


def test_a_copied_loader_reuses_on_its_own(root: Path) -> None:
    import pickle

    loader = load(rk.open(root, transform=STEPS))
    expected = digest(epochs(loader, 2))
    copied = pickle.loads(pickle.dumps(load(rk.open(root, transform=STEPS))))
    assert digest(epochs(copied, 2)) == expected
