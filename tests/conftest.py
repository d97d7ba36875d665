"""What holds for every test: nothing depends on how fast the machine is, and who must run alone does."""

import gc
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from huge_pages import use_huge_pages

# One thread for the arithmetic of each process: tests run side by side, and threads that wait for each other
# spin. Set before anything imports torch, and inherited by what tests start.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# What tests start loads the bytecode of what was imported before, whatever the shell says about writing it:
# compiling all files of the package again takes half a second of each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests that do not name a start method are written for fork, the default before Python 3.14.
if sys.version_info >= (3, 14):
    multiprocessing.set_start_method("fork")

# A busy machine is slow, not wrong: examples have no deadline.
settings.register_profile("rekindle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rekindle")

# Tests that look at what all processes of the machine share, `/dev/shm` and the like.
# `make test` runs the others side by side, and these after them.
ALONE = Path(__file__).parent / "alone"


# Files that take longest: the last file to start should be a short one.
FIRST = ("test_site", "test_closing", "test_against_torch", "test_combinations")
# Files that import large libraries, torch's compiler among them, or keep much in memory for other reasons:
# every later fork of their process takes longer.
LAST = (
    *("test_third_party_transforms", "test_reuse_albumentations", "test_held_generators"),
    *("test_examples", "test_documentation", "test_ray", "test_resumed_parts", "test_frameworks"),
    *("test_timm_steps", "test_architecture", "test_file_access", "test_accelerate", "test_train_proxy"),
    "test_file_reads",
    "test_framework_ranks",
)


@pytest.fixture(autouse=True, scope="module")
def _cheap_forks() -> None:
    use_huge_pages()


@pytest.fixture(autouse=True, scope="session")
def _no_compiling_beside_tests() -> Iterator[None]:
    """Tests see which processes a loader has left: none is to compile kernels meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rekindle.core.compile_later._START_AFTER", math.inf)
        patch.setattr("rekindle.core.compile_later._START_SOON_AFTER", math.inf)
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_end_of_torchs_workers() -> Iterator[None]:
    """After an error, torch's loader waits so long for each of its workers to end, and then ends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
        yield


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty, about which nobody has been warned yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr("rekindle.core.user_cache._warned", set())
    return folder


def pytest_collection_finish() -> None:
    """Leave what stays for good out of garbage collection, which would touch and so copy it in every fork."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Processes that run tests side by side know them by their names.
        assert " at 0x" not in item.nodeid, f"{item.nodeid} has another name each time: give it `ids=named`"
        if ALONE in item.path.parents:
            item.add_marker(pytest.mark.alone)
    late = {name: place for place, name in enumerate(LAST, 1)}
    items.sort(key=lambda item: (item.path.stem not in FIRST, late.get(item.path.stem, 0)))
