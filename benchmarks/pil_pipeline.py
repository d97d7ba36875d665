"""Images behind PIL and torchvision.

Question: Is a dataset of PIL images and torchvision transforms, unchanged, never slower?

Method: photographs are opened with PIL, go through torchvision's RandomResizedCrop(224),
RandomHorizontalFlip, ToTensor and Normalize, and are batched by 64, by 2 workers of each loader.
One epoch with a new loader, from the start of its workers to the end; the batches are not used.

    python -m benchmarks pil_pipeline --data images.tar

Reading: samples/s, more is better. Decoding and resizing take nearly all the time and are the same
code for both, so what a loader can win is what torch's own work costs: collating, moving batches
between processes, and a last batch that one worker prepares while the others idle. The promise is
not to be slower (≥ 1.0×); the aim is 1.1×.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import Dataset

from benchmarks.answer import Bar, Comparison, compare
from benchmarks.epoch_rate import epoch_rates
from benchmarks.photographs import described, photographs
from benchmarks.torchvision_on_cpu import torchvision

WORKERS, BATCH_SIZE = 2, 64


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Image files behind torchvision's usual training transforms."""

    def __init__(self, paths: list[Path]) -> None:
        T = torchvision.transforms  # noqa: N806
        self.paths = paths
        self.transform = T.Compose(
            [
                T.RandomResizedCrop(224),
                T.RandomHorizontalFlip(),
                T.ToTensor(),
                T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as file:
            return self.transform(file.convert("RGB")), index


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Samples a second with each loader."""
    images = photographs(data)
    rates = epoch_rates(Photographs(images), rounds, batch_size=BATCH_SIZE, shuffle=True, num_workers=WORKERS)
    title = f"{described(data, images)}; batch {BATCH_SIZE}, {WORKERS} workers"
    return [compare(title, "samples/s", rates, {"rekindle": [Bar("≥", 1.0), Bar("≥", 1.1, aim=True)]})]
