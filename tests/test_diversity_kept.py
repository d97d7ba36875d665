"""What split="auto" promises is what is counted: distinct views, against those of training without reuse."""

import os
import random
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
from clock import Clock
from light_torchvision import torchvision
from photographs import photographs
from rekindle.reuse.diversity import view_hash
from rekindle.reuse.settings import Refurbish
from rekindle.reuse.split_point import SplitPoint

T, V = rk.transforms, torchvision.transforms
SIZE, SIDE, EPOCHS = 40, 20, 12
CLOCK = Clock()


@cache
def pixels() -> Any:
    return np.stack([photographs()[n % 8][n : n + SIDE, 2 * n : 2 * n + SIDE] for n in range(SIZE)])


class Pictures(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(pixels()[index])), index


def rarely(image: Any) -> Any:
    """A step of the user's own: one image in ten is changed, in many ways."""
    return image + random.random() if random.random() < 0.1 else image


def slow(image: Any) -> Any:
    CLOCK.advance(1.0)
    return image


NOISE = random.Random(0)


def about_as_slow(image: Any) -> Any:
    CLOCK.advance(NOISE.uniform(0.9, 1.1))
    return image


PIPELINES: dict[str, list[Any]] = {
    "crop and flip": [T.RandomCrop(16), T.RandomHorizontalFlip(), T.ToTensor()],
    "crop, erase seldom": [T.RandomCrop(16), T.RandomHorizontalFlip(), T.ToTensor(), T.RandomErasing(0.1)],
    "erase a quarter": [T.RandomResizedCrop(16), T.ToTensor(), T.RandomErasing(0.25)],
    "erase always": [T.RandomResizedCrop(16), T.ToTensor(), T.RandomErasing(1.0)],
    "RandAugment": [T.RandomResizedCrop(16), T.RandAugment(2, 9), T.RandomHorizontalFlip(), T.ToTensor()],
    "three layers": [T.RandomCrop(16), T.RandAugment(3, 9), T.ToTensor()],
    "flips of all kinds": [T.RandomVerticalFlip(0.3), T.RandomHorizontalFlip(0.2), T.RandomGrayscale(0.1)],
    "rare changes": [
        T.RandomResizedCrop(16),
        T.RandomGrayscale(0.05),
        T.RandomSolarize(99, 0.05),
        T.ToTensor(),
    ],
    "jitter, sometimes": [
        T.RandomResizedCrop(16),
        T.RandomApply([T.ColorJitter(0.4, 0.4)], 0.3),
        T.ToTensor(),
    ],
    "TrivialAugment": [T.RandomResizedCrop(16), T.TrivialAugmentWide(), T.ToTensor()],
    "AutoAugment": [T.RandomResizedCrop(16), T.AutoAugment("cifar10"), T.ToTensor(), T.RandomErasing(0.5)],
    "a crop of few places": [T.RandomResizedCrop(16), T.RandomCrop(15), T.ToTensor()],
    "a crop of no place": [T.RandomResizedCrop(16), T.RandomCrop(16), T.ToTensor()],
    "nothing random": [T.Resize((16, 16)), T.ToTensor()],
    "a function, seldom": [T.RandomResizedCrop(16), T.ToTensor(), T.Lambda(rarely)],
}
FOREIGN: dict[str, Any] = {
    "torchvision": [V.RandomResizedCrop(16), V.RandAugment(2, 9), V.RandomHorizontalFlip(), V.ToTensor()],
    "torchvision, erase seldom": [V.RandomResizedCrop(16), V.ToTensor(), V.RandomErasing(0.1)],
    "its own, seldom": [V.RandomResizedCrop(16), V.ToTensor(), rarely],
}
NAMES = [*PIPELINES, *FOREIGN]


def dataset(name: str) -> Any:
    if name in PIPELINES:
        return rk.ArrayImages(pixels(), range(SIZE), PIPELINES[name])
    return Pictures(V.Compose(FOREIGN[name]))


def distinct_views(data: Any, reuse: Any) -> tuple[float, Any]:
    loader = rk.DataLoader(data, 20, shuffle=True, seed=5, reuse=reuse)
    views: dict[int, set[bytes]] = {}
    for _ in range(EPOCHS):
        for images, _ in loader:
            for id_, image in zip(loader.batch.ids.tolist(), images, strict=True):
                views.setdefault(id_, set()).add(view_hash(image))
    found = float(np.mean([len(seen) for seen in views.values()]))
    return found, None if reuse is None else loader.report().reuse.expected


@pytest.mark.parametrize("name", NAMES)
def test_the_least_diversity_is_kept_as_counted(name: str) -> None:
    """The counted share may differ by chance, and because the first round of cached parts is shorter."""
    standard, _ = distinct_views(dataset(name), None)
    for least in (0.9, 0.6):
        kept, promised = distinct_views(dataset(name), rk.Refurbish(3, min_diversity=least, epochs=EPOCHS))
        assert promised >= least - 1e-9
        assert kept / standard >= least - 0.05
        assert kept / standard >= promised - 0.07, "no more is promised than is kept"


def split_of(data: Any, reuse: Refurbish | None = None) -> int | None:
    point = SplitPoint(data, reuse or rk.Refurbish(3), None)
    point.decide("auto")
    return point.index


@pytest.mark.parametrize("name", [name for name in NAMES if "function" not in name and "its own" not in name])
def test_known_steps_are_split_without_a_clock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_clock() -> float:
        raise AssertionError("the time was asked for")

    monkeypatch.setattr(time, "perf_counter", no_clock)
    first = split_of(dataset(name))
    random.seed(8)
    torch.manual_seed(8)
    assert split_of(dataset(name)) == first, "nor does it depend on the generators"


def test_other_steps_are_split_as_guessed_unless_another_way_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CLOCK.replace(monkeypatch)
    steps = [about_as_slow, V.RandomResizedCrop(16), about_as_slow, V.ToTensor(), rarely]
    assert len({split_of(Pictures(V.Compose(steps))) for _ in range(4)}) == 1
    # By the clock, only the steps of this function take time.
    after = [V.RandomResizedCrop(16), V.ToTensor(), slow, V.RandomErasing(1.0)]
    assert split_of(Pictures(V.Compose(after))) == 3


def _decide(rank: int, world: int, folder: str, found: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    # On rank 1, the last part seems to take all of the time; on rank 0, the first.
    cost = [V.Lambda(slow), V.Lambda(_same)] if rank == 0 else [V.Lambda(_same), V.Lambda(slow)]
    steps = [cost[0], V.RandomResizedCrop(16), V.RandomHorizontalFlip(), cost[1], V.ToTensor()]
    CLOCK.replace(pytest.MonkeyPatch())
    found.put((rank, split_of(Pictures(V.Compose(steps)), rk.Refurbish(3, min_diversity=0))))
    torch.distributed.destroy_process_group()


def _same(image: Any) -> Any:
    return image


def test_rank_0_decides_for_all(tmp_path: Any) -> None:
    context = torch.multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    ranks = [context.Process(target=_decide, args=(rank, 2, str(tmp_path), found)) for rank in range(2)]
    for process in ranks:
        process.start()
    splits = dict(found.get() for _ in ranks)
    for process in ranks:
        process.join()
    assert splits[0] == splits[1] is not None
