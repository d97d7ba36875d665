"""LMDB files."""
