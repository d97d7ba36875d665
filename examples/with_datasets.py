"""Trains a text classifier on a Hugging Face dataset.

    python examples/with_datasets.py reviews.csv              # a table with the columns `text` and `label`

`datasets` keeps the table on disk as Arrow, Rekindle loads it: in an order that depends on the seed alone, in
workers that may die, with a `state_dict()` after any batch. `load_dataset` also takes a dataset of the Hub.
"""

import argparse
from typing import Any

import torch
from datasets import load_dataset
from torch import Tensor, nn

import rekindle as rk


def tokenize(row: dict[str, Any]) -> dict[str, Any]:
    """Bytes as tokens: nothing to download. A tokenizer of `transformers` goes in its place."""
    return {"tokens": list(row["text"].encode()[:256]), "label": row["label"]}


def collate(rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor, Tensor]:
    """All tokens in one row, where each text starts, and the labels: as `nn.EmbeddingBag` takes them."""
    lengths = torch.tensor([len(row["tokens"]) for row in rows])
    tokens = torch.cat([row["tokens"] for row in rows])
    return tokens, lengths.cumsum(0) - lengths, torch.stack([row["label"] for row in rows])


class Classifier(nn.Module):
    """The mean of embedded pairs of neighbouring bytes, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(4096, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, tokens: Tensor, starts: Tensor) -> Tensor:
        pairs = (tokens * 31 + tokens.roll(-1)) % 4096
        return self.head(self.bag(pairs, starts))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="a CSV file with the columns `text` and `label`")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)

    table = load_dataset("csv", data_files=options.data, split="train")
    data = table.map(tokenize, remove_columns=table.column_names).with_format("torch")
    loader = rk.DataLoader(
        data, options.batch_size, shuffle=True, num_workers=options.workers, collate_fn=collate, seed=0
    )
    model = Classifier(classes=max(table["label"]) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for epoch in range(options.epochs):
        losses, right, count = [], 0, 0
        for tokens, starts, labels in loader:
            logits = model(tokens, starts)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            right, count = right + int((logits.argmax(1) == labels).sum()), count + len(labels)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, accuracy {right / count:.3f}")
    print(loader.report())


if __name__ == "__main__":
    main()
