"""Trains with Lightning, whose checkpoints then also hold where the loader stands.

    python examples/with_lightning.py
    python examples/with_lightning.py --resume checkpoints/last.ckpt     # goes on in the middle of an epoch

`rk.DataLoader` has `state_dict` and `load_state_dict`, which Lightning looks for: nothing else is needed.
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import rekindle as rk


class Data(lightning.LightningDataModule):
    """Points in the plane; which ring around the origin they are in is to be learnt."""

    def train_dataloader(self) -> rk.DataLoader:
        points = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(points, (points.norm(dim=1) * 2).long().clamp(max=4))
        return rk.DataLoader(data, batch_size=40, shuffle=True, num_workers=2, seed=0)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
        )
        self.losses: list[float] = []
        self.seen: list[int] = []

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        points, rings = batch
        loss = nn.functional.cross_entropy(self.network(points), rings)
        self.losses.append(loss.item())
        self.seen += self.trainer.train_dataloader.batch.ids.tolist()  # which samples this batch has
        return loss

    def on_train_epoch_end(self) -> None:
        mean = sum(self.losses) / len(self.losses)
        print(f"epoch {self.current_epoch}: {len(set(self.seen))} samples, loss {mean:.3f}")
        self.losses, self.seen = [], []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250, help="50 are an epoch")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    model = Model()
    trainer = lightning.Trainer(
        max_steps=options.steps,
        callbacks=[ModelCheckpoint(options.checkpoints, every_n_train_steps=20, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, Data(), ckpt_path=options.resume)
    print(trainer.train_dataloader.report())


if __name__ == "__main__":
    main()
