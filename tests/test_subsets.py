"""`torch.utils.data.Subset` of a native dataset: native too, keyed by the index in the subset."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, default_collate, random_split

import rekindle as rk
from photographs import photographs
from rekindle.core import counter_rng
from rekindle.prepare.native import as_native, for_workers
from rekindle.prepare.native_subset import NativeSubset
from same import same

T = rk.transforms
STEPS = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()]
CHOSEN = [11, 3, 3, 0, 7, 9, 1]
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "2 processes": {"num_workers": 2, "executor": "processes"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("images")
    for number in range(12):
        kind = root / f"class-{number % 3}"
        kind.mkdir(exist_ok=True)
        Image.fromarray(np.ascontiguousarray(photographs()[number % 8][:50, :60])).save(
            kind / f"{number:02}.png"
        )
    return rk.open(root, STEPS)


@pytest.fixture(scope="module")
def arrays() -> Any:
    images = np.stack([photograph[:32, :32] for photograph in photographs()] * 2)
    steps = [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), T.ToTensor()]
    return rk.ArrayImages(images, range(len(images)), steps)


def load(dataset: Any, **settings: Any) -> Any:
    return rk.DataLoader(dataset, **{"batch_size": 3, "seed": 3, **settings})


def expected(dataset: Any, chosen: Any, batch_size: int = 3) -> list[Any]:
    """A sample's uniforms are keyed by its index in the subset."""
    uniforms = counter_rng.uniforms(3, np.arange(len(chosen)), 0, count=dataset.uniforms)
    samples = [dataset.sample(int(index), row) for index, row in zip(chosen, uniforms, strict=True)]
    return [
        default_collate(samples[start : start + batch_size]) for start in range(0, len(chosen), batch_size)
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["folder", "arrays"])
@pytest.mark.parametrize("indices", [CHOSEN, range(2, 9), np.array(CHOSEN), torch.tensor(CHOSEN)], ids=repr)
def test_a_subset_is_native(kind: str, way: str, indices: Any, request: pytest.FixtureRequest) -> None:
    dataset = request.getfixturevalue(kind)
    loader = load(Subset(dataset, indices), **WAYS[way])
    ids, batches = [], []
    for batch in loader:
        batches.append([part.clone() for part in batch])
        ids += loader.batch.ids.tolist()
    assert ids == list(range(len(indices)))
    assert same(batches, expected(dataset, indices))
    assert loader.report().executor == {"inline": "inline", "2 threads": "threads"}.get(way, "processes")


@pytest.mark.parametrize("way", WAYS)
def test_a_subset_of_a_subset_is_native(folder: Any, way: str) -> None:
    nested = Subset(Subset(folder, CHOSEN), [6, 0, 2])
    assert isinstance(for_workers(nested), NativeSubset)
    assert same(list(load(nested, **WAYS[way])), expected(folder, [1, 11, 3]))


def test_a_random_split_is_shuffled_and_resumed(folder: Any) -> None:
    train, _ = random_split(folder, [8, 4], generator=torch.Generator().manual_seed(0))
    whole = [[part.clone() for part in batch] for batch in load(train, shuffle=True)]
    loader = load(train, shuffle=True, num_workers=2)
    batches = iter(loader)
    next(batches)
    resumed = load(train, shuffle=True, num_workers=1)
    resumed.load_state_dict(loader.state_dict())
    assert same([[part.clone() for part in batch] for batch in resumed], whole[1:])


def test_other_subsets_are_unchanged(folder: Any) -> None:
    class Own(Subset[Any]):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[1]

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    third_party = rk.open(Path(folder.source.root), lambda image: np.asarray(image)[:9, :9])
    for dataset in (Own(folder, CHOSEN), Subset(third_party, CHOSEN), Subset(range(9), [1, 2])):
        assert for_workers(dataset) is dataset
        assert as_native(dataset) is None
    assert [batch.tolist() for batch in load(Subset(range(9), [4, 2]))] == [[4, 2]]


@pytest.mark.parametrize("mask", [np.arange(9) < 2, torch.arange(9) < 2, [True, False]], ids=type)
def test_a_mask_is_refused(mask: Any) -> None:
    images = rk.ArrayImages(np.zeros((9, 4, 4, 3), dtype=np.uint8), range(9), [T.ToTensor()])
    with pytest.raises(rk.ArgumentError, match=r"a mask, .* mask.nonzero\(\)\[0\]"):
        rk.DataLoader(Subset(images, mask))


@pytest.mark.parametrize("indices", [np.array([2.7, 3.9]), [[1], [2]], [[1], [2, 3]]], ids=repr)
def test_indices_that_are_no_integers_mean_what_they_mean_without_a_loader(indices: Any) -> None:
    images = rk.ArrayImages(np.zeros((9, 4, 4, 3), dtype=np.uint8), range(9), [T.ToTensor()])
    dataset = Subset(images, indices)
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever Python says of it
        dataset[0]
    with pytest.raises(expected.type, match=re.escape(str(expected.value).partition(":")[0])):
        next(iter(rk.DataLoader(dataset)))


def test_a_subset_by_keys_is_the_same_as_without_a_loader() -> None:
    images = rk.ArrayImages(np.zeros((9, 4, 4, 3), dtype=np.uint8), range(9), [T.ToTensor()])
    (batch,) = rk.DataLoader(Subset(images, {0: 7, 1: 3}), batch_size=2)  # type: ignore[arg-type]
    assert batch[1].tolist() == [7, 3]
