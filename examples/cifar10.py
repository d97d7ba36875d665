"""Trains a small ResNet on CIFAR-10, and leaves out samples that the network has learnt already.

    python examples/cifar10.py --data cifar-10-batches-py     # the unpacked "python version" of the archive

The images stay in memory as bytes; crops, flips and normalisation of a batch are one native call. `InfoBatch`
skips about a third of the samples of an epoch and weights the others so that the gradient is unbiased.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import rekindle as rk

T = rk.transforms
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NORMALIZE = [T.ToTensor(), T.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))]


def read(folder: Path, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (samples × 32 × 32 × 3) and labels. They are pickles: take them from the original archive."""
    batches = [pickle.loads(path.read_bytes(), encoding="bytes") for path in sorted(folder.glob(pattern))]
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return pixels.transpose(0, 2, 3, 1).copy(), np.concatenate([batch[b"labels"] for batch in batches])


class Block(nn.Module):
    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, wider, 3, 2, 1), nn.BatchNorm2d(wider), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(wider, wider, 3, 1, 1), nn.BatchNorm2d(wider))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.relu(x + self.second(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("cifar-10-batches-py"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)

    augment = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *NORMALIZE]
    train_set = rk.ArrayImages(*read(options.data, "data_batch_*"), transform=augment)
    test_set = rk.ArrayImages(*read(options.data, "test_batch"), transform=NORMALIZE)
    importance = rk.InfoBatch(epochs=options.epochs)
    settings = {"batch_size": options.batch_size, "num_workers": 1, "device": DEVICE}
    train_loader = rk.DataLoader(train_set, shuffle=True, seed=0, importance=importance, **settings)
    test_loader = rk.DataLoader(test_set, **settings)

    blocks = [Block(3, 32), Block(32, 64), Block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*blocks, nn.Linear(128, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)

    for epoch in range(options.epochs):
        for images, labels in train_loader:
            losses = nn.functional.cross_entropy(model(images), labels, reduction="none")  # one a sample
            optimizer.zero_grad()
            (losses * train_loader.batch.weights.to(DEVICE)).mean().backward()
            optimizer.step()
            train_loader.feedback(losses=losses)
        model.eval()
        with torch.no_grad():
            right = torch.cat([model(images).argmax(1) == labels for images, labels in test_loader])
        model.train()
        print(f"epoch {epoch}: accuracy {right.float().mean():.3f}")
    print(train_loader.report())


if __name__ == "__main__":
    main()
