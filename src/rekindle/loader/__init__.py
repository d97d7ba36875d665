"""The drop-in DataLoader: wires the folders above, holds no logic."""
