"""Run by Python as it starts, where this folder is on PYTHONPATH: scripts can import torchvision on a CPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import benchmarks.torchvision_on_cpu  # noqa: F401
