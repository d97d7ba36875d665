"""A dataset whose workers may be threads of one process."""

import torch
from torch.utils.data import Dataset


class Declared(Dataset):
    """Says that it releases the GIL and draws nothing, as native code does."""

    releases_gil = draws_nothing = True

    def __init__(self, size=64):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((300,), index), index
