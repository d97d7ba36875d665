"""Tar files, as WebDataset lays them out."""
