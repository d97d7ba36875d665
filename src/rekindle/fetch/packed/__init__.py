"""Samples in packed files: HDF5, TFRecord, tar and LMDB as tables of byte ranges."""
