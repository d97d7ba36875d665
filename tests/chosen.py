"""A dataset of numbers, loaders that choose of it, and a training loop that reports to them."""

import torch

import rekindle as rk

SIZE = 60
LOSSES = torch.rand(SIZE, generator=torch.Generator().manual_seed(1)) * 3
LOGITS = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(2)) * 2
TARGETS = torch.arange(SIZE) % 4


class Numbers(torch.utils.data.Dataset):
    """Sample i is i: from a Python __getitem__."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return index


class NumbersInThreads(Numbers):
    releases_gil = True


METHODS = {
    "Buckets": lambda: rk.Buckets(warmup=1, rate=0.1, confidence=0, patience=1),
    "InfoBatch": lambda: rk.InfoBatch(epochs=5),
    "Kakurenbo": lambda: rk.Kakurenbo(epochs=5, confidence=0.3),
    "OnlineBatchSelection": lambda: rk.OnlineBatchSelection(epochs=5),
    "ActiveBias": lambda: rk.ActiveBias(warmup=1),
    "RandomSubset": lambda: rk.RandomSubset(keep=0.4),
}


def make_loader(method, dataset=None, **arguments):
    arguments = {"batch_size": 8, "shuffle": True, "seed": 5, **arguments}
    return rk.DataLoader(dataset or Numbers(), importance=method, **arguments)


def learn(loader, rows):
    """Feedback that depends on the epoch, as that of a model that learns would."""
    loader.feedback(
        logits=LOGITS[rows] * (1 + loader.batch.epoch * rows[:, None] / SIZE), targets=TARGETS[rows]
    )


def train(loader, epochs):
    """What a training loop sees: ids and weights of each batch, in each epoch."""
    seen = []
    for _ in range(epochs):
        batches, length = [], len(loader)
        for rows in loader:
            rows = rows[0] if isinstance(rows, list) else rows
            assert torch.equal(loader.batch.ids, rows)
            batches.append((rows.tolist(), loader.batch.weights.tolist()))
            learn(loader, rows)
        assert len(batches) == length
        seen.append(batches)
    return seen
