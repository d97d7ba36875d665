"""Trains a small CNN on a folder of images, and decodes and augments only a third of them in each epoch.

    python examples/image_folder.py path/to/train --epochs 90 --workers 8  # a folder for each class

`Refurbish(3)` keeps partly augmented images, uses each of them in three epochs and recomputes only the rest
of the augmentation. A run that was stopped resumes from its last checkpoint, in the middle of an epoch.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import rekindle as rk

T = rk.transforms
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, default=Path("image_folder.pt"))
    options = parser.parse_args()
    torch.manual_seed(0)

    steps = [
        T.RandomResizedCrop(64, scale=(0.5, 1)),
        T.RandAugment(2, 9),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    images = rk.open(options.data, transform=steps)
    loader = rk.DataLoader(
        images, options.batch_size, shuffle=True, num_workers=options.workers, seed=0, device=DEVICE,
        reuse=rk.Refurbish(factor=3, split="RandAugment[1]"),  # kept: images with one layer of two applied
    )  # fmt: skip

    layers: list[nn.Module] = []
    for channels, wider in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, wider, 3, stride=2, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(images.classes))]
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}

    first = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=DEVICE)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first = saved["epoch"]
        print(f"resumed from {options.checkpoint} in epoch {first} of {options.epochs}")
    for epoch in range(first, options.epochs):
        losses = []
        for step, (batch, labels) in enumerate(loader, start=1):
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % 100 == 0:
                save(options.checkpoint, parts, epoch)
        save(options.checkpoint, parts, epoch + 1)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    print(loader.report())


def save(path: Path, parts: dict[str, object], epoch: int) -> None:
    torch.save({"epoch": epoch} | {name: part.state_dict() for name, part in parts.items()}, path)


if __name__ == "__main__":
    main()
