"""What holds for every test: nothing depends on how fast the machine is, and who must run alone does."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# One thread for the arithmetic of each process: tests run side by side, and threads that wait for each other
# spin. Set before anything imports torch, and inherited by what tests start.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Tests that do not name a start method are written for fork, the default before Python 3.14.
if sys.version_info >= (3, 14):
    multiprocessing.set_start_method("fork")

# A busy machine is slow, not wrong: examples have no deadline.
settings.register_profile("rekindle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rekindle")

# Tests that look at what all processes of the machine share, `/dev/shm` and the like.
# `make test` runs the others side by side, and these after them.
ALONE = {
    "test_closing.py": {"test_a_killed_main_process_leaves_nothing"},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Processes that run tests side by side know them by their names.
        assert " at 0x" not in item.nodeid, f"{item.nodeid} has another name each time: give it `ids=named`"
        if getattr(item, "originalname", item.name) in ALONE.get(Path(item.path).name, ()):
            item.add_marker(pytest.mark.alone)
