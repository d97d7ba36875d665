"""Runs PyTorch's own tests of its DataLoader with Rekindle's class in its place.

    python tests/run_torch_suite.py path/to/test_dataloader.py [arguments of pytest]

The file is `test/test_dataloader.py` of PyTorch's repository, at the tag of the installed release (2.13.0 is
`v2.13.0`); it is not part of the torch package. pytest and expecttest have to be installed. Tests whose
subject is torch's own implementation (its private iterator classes, say) cannot pass with another one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch.utils.data
import torch.utils.data.dataloader

import rekindle as rk


def main(arguments: list[str]) -> int:
    """Run the tests of the file that the first argument names; pytest's exit code."""
    if not arguments or not Path(arguments[0]).is_file():
        print(__doc__, file=sys.stderr)
        return 2
    # Before the file is imported: it takes the class by name.
    torch.utils.data.DataLoader = rk.DataLoader  # type: ignore[misc]
    torch.utils.data.dataloader.DataLoader = rk.DataLoader  # type: ignore[misc]
    folder = str(Path(arguments[0]).resolve().parent)
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder, "-q"]
    return int(pytest.main([*arguments, *options]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
