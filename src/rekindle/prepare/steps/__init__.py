"""The image steps, one file each kind."""
