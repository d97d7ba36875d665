"""Refurbishing: what is cached, lost or damaged changes no byte of any batch, and the report says so."""

import os
import random
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

import rekindle as rk
from refurbished import SIZE, STEPS, WAYS, T, Words, epochs, foreign, load, make_images, ours
from same import digest, same


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


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
    assert reuse.cure == "Refurbish(factor=3, split=2, memory=48000)"  # the loader's, which counts


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
