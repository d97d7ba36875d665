"""A Lightning module that notes which batches it is given. A module of its own, as Lightning is large."""

import lightning
import torch


class Fit(lightning.LightningModule):
    """Fits a line, and remembers the ids of every batch with its epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen, self.validated = [], []

    def training_step(self, batch, batch_index):
        x, y, ids = batch
        self.seen.append((self.current_epoch, ids.tolist()))
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def validation_step(self, batch, batch_index):
        self.validated.append(self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class FitSeveral(Fit):
    """The same with a batch of each of several loaders, or None."""

    def training_step(self, batches, batch_index):
        ids = {name: batch if batch is None else batch[2].tolist() for name, batch in batches.items()}
        self.seen.append((self.current_epoch, ids))
        x, y, _ = next(batch for batch in batches.values() if batch is not None)
        return torch.nn.functional.mse_loss(self.layer(x), y)
