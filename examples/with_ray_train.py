"""Trains with Ray Train: two ranks, whose samples are prepared by actors that they share.

    pip install 'rekindle[ray]' 'ray[train]'
    python examples/with_ray_train.py            # on this machine; with RAY_ADDRESS set, on a cluster

Each rank has its own half of every epoch (`shard="ranks"`). The actors are found by their name; they use CPUs
that the trainer leaves free.
"""

import argparse
import os
import tempfile

import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import rekindle as rk


class Waves(torch.utils.data.Dataset):
    """Noisy waves of two frequencies: for work that one machine has too few CPUs for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % 2
        wave = torch.sin(torch.linspace(0, 6 + 6 * kind, 32) + 6 * torch.rand(1))
        return wave + 0.1 * torch.randn(32), kind


def train(options: dict[str, int]) -> None:
    """What each rank runs."""
    torch.manual_seed(0)
    data = Waves(options["samples"])
    actors = rk.Ray(workers=2, cpus=0.5, name="waves")
    loader = rk.DataLoader(data, 32, shuffle=True, seed=0, shard="ranks", executor=actors)
    model = prepare_model(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(options["epochs"]):
        seen, total = 0, 0.0
        for waves, kinds in loader:
            loss = nn.functional.cross_entropy(model(waves), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = seen + len(kinds), total + loss.item() * len(kinds)
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, f"{folder}/state.pt")
            checkpoint = Checkpoint(folder) if ray.train.get_context().get_world_rank() == 0 else None
            ray.train.report({"epoch": epoch, "samples": seen, "loss": total / seen}, checkpoint)
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2000)
    options = vars(parser.parse_args())
    if "RAY_ADDRESS" not in os.environ:
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    ranks = ScalingConfig(num_workers=2)
    with tempfile.TemporaryDirectory() as folder:
        run = RunConfig(storage_path=folder)
        trainer = TorchTrainer(train, train_loop_config=options, scaling_config=ranks, run_config=run)
        metrics = trainer.fit().metrics
    print(f"epoch {metrics['epoch']}: {metrics['samples']} samples on rank 0, loss {metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
