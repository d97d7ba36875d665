"""Trains a small GPT on a file of tokens that is mapped into memory, and resumes at the very next block.

    python examples/language_model.py train.bin               # 16-bit tokens, as nanoGPT prepares them
    python examples/language_model.py train.bin --steps 2000  # goes on after the last checkpoint

Every block of the file is seen once in an epoch, in an order that depends on the seed alone: a resumed run
and one that was never stopped see the same batches, whatever the number of workers.
"""

import argparse
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import rekindle as rk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, WIDTH, CHECKPOINT = 64, 64, Path("language_model.pt")


class Blocks(Dataset[tuple[Tensor, Tensor]]):
    """Blocks of tokens, each with the tokens that follow its own."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        block = self.tokens[index * LENGTH : (index + 1) * LENGTH + 1]
        return torch.from_numpy(block[:-1].astype(np.int64)), torch.from_numpy(block[1:].astype(np.int64))


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=tokens.device)
        return self.head(self.layers(self.token(tokens) + self.position.weight, mask, is_causal=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--vocabulary", type=int, default=50304, help="how many tokens there are: GPT-2's")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = rk.DataLoader(Blocks(options.tokens), 16, shuffle=True, num_workers=2, seed=0, device=DEVICE)
    model = GPT(options.vocabulary).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    saved = torch.load(CHECKPOINT, map_location=DEVICE) if CHECKPOINT.exists() else {"done": 0}
    for name, part in parts.items():
        if name in saved:
            part.load_state_dict(saved[name])
    batches = chain.from_iterable(repeat(loader))  # epoch after epoch
    for step, (inputs, targets) in zip(range(saved["done"], options.steps), batches, strict=False):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step}: block {loader.batch.ids[0]}, loss {loss.item():.3f}")
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"done": step + 1, **states}, CHECKPOINT)
