"""The native boundary under numba's bounds checking: no compiled loop indexes outside of its arrays."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# What tests name that run compiled code: steps, images, files of them and the kernels themselves.
COMPILED = re.compile(
    r"ToTensor|Resize|ArrayImages|rk\.open\b|rekindle\.prepare|transforms|lzf|golden_configurations"
)
FILES = [
    str(path.relative_to(TESTS))
    for path in sorted(TESTS.rglob("test_*.py"))
    if path != Path(__file__) and COMPILED.search(path.read_text())
]
# An index that is wrong on purpose is found: otherwise the run below would check nothing.
PROBE = """
import numba, numpy
@numba.njit(boundscheck=False)
def read(array, index):
    return array[index]
try:
    read(numpy.zeros(3), 3)
except IndexError:
    print("checked")
"""


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder / "numba")}


@pytest.mark.slow
def test_numba_checks_bounds_when_asked_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, env=_environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout == "checked\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", FILES)
def test_no_kernel_leaves_its_arrays(file: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    shared = tmp_path_factory.getbasetemp()  # compiled once
    flags = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", *flags, str(TESTS / file)]
    done = subprocess.run(
        command, env=_environment(shared), cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
