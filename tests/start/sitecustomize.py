"""Run by Python as it starts, where this folder is on PYTHONPATH: scripts can import torchvision on a CPU."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[number]) for number in (1, 2)]

import light_torchvision  # noqa: F401
