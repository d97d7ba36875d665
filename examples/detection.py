"""Trains a small object detector on images of different sizes, with a `collate_fn` of its own.

    python examples/detection.py images/ annotations.json     # annotations as COCO has them

The `collate_fn` gets whole samples and pads each batch to its largest image. With `on_error="substitute"` an
image that is missing or damaged costs a line in the report instead of the run.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

import rekindle as rk

STRIDE = 8  # pixels for each cell of the network's output


class Coco(Dataset[tuple[Tensor, Tensor]]):
    """Images and the boxes on them (left, top, width, height)."""

    def __init__(self, folder: Path, annotations: Path) -> None:
        content = json.loads(annotations.read_text())
        self.files = [folder / image["file_name"] for image in content["images"]]
        boxes = {image["id"]: [] for image in content["images"]}
        for one in content["annotations"]:
            boxes[one["image_id"]].append(one["bbox"])
        self.boxes = [torch.tensor(one).reshape(-1, 4) for one in boxes.values()]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = np.asarray(Image.open(self.files[index]).convert("RGB"), dtype=np.float32)
        return torch.from_numpy(pixels / 255 - 0.5).permute(2, 0, 1), self.boxes[index]


def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Images padded to one size, and for each cell whether a box's centre is in it, and that box's size."""
    height, width = (-(-max(image.shape[side] for image, _ in samples) // STRIDE) for side in (1, 2))
    images = torch.zeros(len(samples), 3, height * STRIDE, width * STRIDE)
    cells = torch.zeros(len(samples), 3, height, width)
    for number, (image, boxes) in enumerate(samples):
        images[number, :, : image.shape[1], : image.shape[2]] = image
        for left, top, w, h in boxes.tolist():
            row, column = int(top + h / 2) // STRIDE, int(left + w / 2) // STRIDE
            cells[number, :, row, column] = torch.tensor([1, w / 32, h / 32])
    return images, cells


def main() -> None:
    torch.manual_seed(0)
    data = Coco(*map(Path, sys.argv[1:]))
    loader = rk.DataLoader(data, 8, shuffle=True, num_workers=2, collate_fn=collate, on_error="substitute")
    widths = ((3, 16), (16, 32), (32, 64))
    layers = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in widths]
    model = nn.Sequential(*layers, nn.Conv2d(64, 3, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(5):
        losses = []
        for images, cells in loader:
            error = (model(images) - cells) ** 2
            error[:, 1:] *= cells[:, :1]  # sizes count only where there is a box
            loss = error.sum() / cells[:, 0].sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    print(loader.report())


if __name__ == "__main__":
    main()
