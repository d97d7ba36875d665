"""Trains with Accelerate; `save_state` and `load_state` then include where the loader stands.

    python examples/with_accelerate.py            # or: accelerate launch examples/with_accelerate.py
    python examples/with_accelerate.py --resume   # goes on after the last checkpoint

What `prepare` makes of the loader is still Rekindle's, with all of its arguments.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import TensorDataset

import rekindle as rk


class Step:
    """How many steps were made, as something that Accelerate can save."""

    def __init__(self) -> None:
        self.epoch = self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop-after", type=int, help="end after so many steps, as a job's time limit would")
    parser.add_argument("--folder", type=Path, default=Path("accelerate_checkpoint"))
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator()

    inputs = torch.linspace(-3, 3, 1200)[:, None]
    data = TensorDataset(inputs, inputs.sin())
    loader = rk.DataLoader(data, batch_size=40, shuffle=True, num_workers=2, seed=0)
    network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    step = Step()
    accelerator.register_for_checkpointing(loader, step)
    if options.resume:
        accelerator.load_state(str(options.folder))

    for epoch in range(step.epoch, options.epochs):
        losses = []
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            step.epoch, step.done = epoch, step.done + 1
            if step.done % 10 == 0:
                accelerator.save_state(str(options.folder))
            if step.done == options.stop_after:
                return
        accelerator.print(f"epoch {epoch}: {len(losses)} steps, loss {sum(losses) / len(losses):.4f}")
    accelerator.print(loader.report())
    accelerator.end_training()


if __name__ == "__main__":
    main()
