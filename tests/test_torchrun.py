"""Ranks that torchrun itself starts share one cache a host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchrun_rank import FACTOR, SIZE

HERE = Path(__file__).parent


@pytest.mark.slow
def test_each_part_is_computed_once_a_host_and_a_killed_rank_costs_no_entry(tmp_path):
    source = str(HERE.parent / "src")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*torchrun, HERE / "torchrun_rank.py", tmp_path],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode != 0  # for rank 1, which was killed
    found = tmp_path / "found"
    assert found.exists(), ended.stderr
    first, second = map(int, found.read_text().split())
    # Beside the epoch: eight by which the cache's size is judged, and what both begin at the same instant.
    assert SIZE <= first <= SIZE + 8 + SIZE // 10
    assert second == SIZE // FACTOR  # What was due: all that the killed rank had computed is there.
