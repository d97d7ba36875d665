"""How much memory the machine and the container leave, and what happens if it is too little."""

import subprocess
import textwrap

import pytest

import rekindle as rk
import warm_python
from blocks import make
from rekindle.core import available_memory
from rekindle.run import slots
from rekindle.run.window import Window

# Too little memory.


@pytest.mark.parametrize("kind", ["rows", "padded"])
@pytest.mark.parametrize("runner", ["processes", "threads"])
def test_too_little_memory_is_an_error_with_numbers_and_a_cure(kind, runner, monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: 3 * 2**10)
    iterator = iter(make(kind, runner))
    with pytest.raises(rk.OutOfMemoryError) as caught:
        list(iterator)
    for part in ("6 batches", "MiB", "available", "batch_size", "prefetch_factor", "num_workers"):
        assert part in str(caught.value)
    # There is no going on, and no hanging either.
    with pytest.raises(rk.RekindleError):
        next(iterator)


def test_enough_memory_is_no_error(monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: 6 * 64 * 2**10)
    assert len(list(make("rows"))) == 32


def test_unknown_memory_is_no_error(monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: None)
    assert len(list(make("rows"))) == 32


def test_the_numbers_in_the_error_are_right(monkeypatch):
    monkeypatch.setattr(slots, "available_memory", lambda: 10 * 2**20)
    slots.SlotPool(Window(2, 3, whole=False)).check_room(2 * 2**20)  # 3 in flight, and 2 in use
    with pytest.raises(rk.OutOfMemoryError, match=r"6 batches of 2\.0 MiB.*12 MiB.*10 MiB"):
        slots.SlotPool(Window(2, 4, whole=False)).check_room(2 * 2**20)


LARGE = """
    import ctypes, os, resource, subprocess, sys
    import torch
    import rekindle as rk

    class Large(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return torch.full((int(sys.argv[1]),), index, dtype=torch.uint8)

    if __name__ == "__main__":
        {limit}
        loader = rk.DataLoader(Large(), 8, num_workers=2, seed=1)
        before = set(os.listdir("/dev/shm"))
        shared = set()
        try:
            total = 0
            for batch in loader:
                total += len(batch)
                shared.update(os.listdir("/dev/shm"))
        except rk.OutOfMemoryError as error:
            print("OutOfMemoryError:", error)
        else:
            print("samples:", total, "in /dev/shm:", len(shared - before))
"""
ADDRESS_SPACE = """
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + 2**28
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


TINY_DEV_SHM = """
        CLONE_NEWNS = 0x20000
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
        for command in ("mount --make-rprivate /", "mount -t tmpfs -o size=1m tmpfs /dev/shm"):
            subprocess.run(command.split(), check=True)
"""


def run(tmp_path, sample_bytes, limit):
    script = tmp_path / "large.py"
    script.write_text(textwrap.dedent(LARGE.replace("        {limit}\n", limit)))
    return warm_python.run(script, sample_bytes)


def test_a_limit_of_the_process_is_an_error_with_numbers_and_a_cure(tmp_path):
    done = run(tmp_path, 20 * 2**20, ADDRESS_SPACE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("OutOfMemoryError:")
    assert "160.0 MiB" in done.stdout
    assert "batch_size" in done.stdout


def test_a_tiny_dev_shm_is_enough_and_not_used(tmp_path):
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    done = run(tmp_path, 2**20, TINY_DEV_SHM)
    assert (done.returncode, done.stdout) == (0, "samples: 64 in /dev/shm: 0\n"), done.stderr[-2000:]


# How much memory there is.

MEMINFO = "MemTotal:       32000 kB\nMemFree:         5000 kB\nMemAvailable:   20000 kB\n"
UNLIMITED = 9223372036854771712  # what control groups of version 1 say for "no limit"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "kilobytes"),
    [
        pytest.param({"proc/meminfo": MEMINFO}, 20_000, id="no container"),
        pytest.param({}, None, id="no word"),
        pytest.param({"proc/meminfo": "MemTotal: 32000 kB"}, None, id="an old kernel"),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": 10_000 << 10,
                "sys/fs/cgroup/memory.current": 4_000 << 10,
            },
            6_000,
            id="version 2, own namespace",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": "max",
                "sys/fs/cgroup/memory.current": 4_000 << 10,
            },
            20_000,
            id="version 2, no limit",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/slice/job",
                "sys/fs/cgroup/slice/memory.max": 8_000 << 10,
                "sys/fs/cgroup/slice/memory.current": 3_000 << 10,
                "sys/fs/cgroup/slice/job/memory.max": "max",
                "sys/fs/cgroup/slice/job/memory.current": 1_000 << 10,
            },
            5_000,
            id="version 2, the limit is above",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "12:memory:/docker/abc\n1:name=systemd:/docker/abc",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 10_000 << 10,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3_000 << 10,
            },
            7_000,
            id="version 1, own namespace",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3_000 << 10,
            },
            20_000,
            id="version 1, no limit",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:memory:/slurm/uid_1/job_2\n4:cpu:/\n0::/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 3_000 << 10,
                "sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.limit_in_bytes": 9_000 << 10,
                "sys/fs/cgroup/memory/slurm/uid_1/job_2/memory.usage_in_bytes": 1_000 << 10,
            },
            8_000,
            id="version 1, a cluster's job",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": 10_000 << 10,
                "sys/fs/cgroup/memory.current": 10_000 << 10,
                "sys/fs/cgroup/memory.stat": f"anon {2_000 << 10}\ninactive_file {7_000 << 10}",
            },
            7_000,
            id="version 2, cached files make room",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 10_000 << 10,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 10_000 << 10,
                "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {7_000 << 10}",
            },
            7_000,
            id="version 1, cached files make room",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "sys/fs/cgroup/memory.max": 1_000 << 10,
                "sys/fs/cgroup/memory.current": 1_200 << 10,
            },
            0,
            id="over the limit",
        ),
        pytest.param(
            {"proc/meminfo": "MemAvailable: much", "sys/fs/cgroup/memory.max": "?"},
            None,
            id="nonsense",
        ),
    ],
)
def test_available_memory_is_what_the_machine_and_the_container_leave(files, kilobytes, tmp_path):
    bound = available_memory.available_memory(tree(tmp_path, files))
    assert bound == (None if kilobytes is None else kilobytes << 10)


def test_available_memory_of_this_machine_is_known():
    bound = available_memory.available_memory()
    assert bound is not None
    assert 2**20 < bound < 2**50
