"""Cores are counted as a container has them."""

import os
from pathlib import Path

import pytest

from rekindle.core.available_cores import available_cores


def system(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A system's files below a root."""
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "4:memory:/a\n3:cpu,cpuacct:/a/b\n"
GROUPS = "sys/fs/cgroup"
PERIOD = {f"{GROUPS}/cpu/a/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/a/b\n", {f"{GROUPS}/a/cpu.max": "250000 100000\n"}, 3),
        ("0::/a/b\n", {f"{GROUPS}/a/cpu.max": "max 100000", f"{GROUPS}/a/b/cpu.max": "50000 100000"}, 1),
        ("0::/\n", {f"{GROUPS}/cpu.max": "nonsense"}, 8),
        (V1, {f"{GROUPS}/cpu/a/cpu.cfs_quota_us": "200000", **PERIOD}, 2),
        (V1, {f"{GROUPS}/cpu/a/cpu.cfs_quota_us": "-1", **PERIOD}, 8),
        ("", {}, 8),
    ],
    ids=["version 2", "of the innermost", "not understood", "version 1", "version 1, no limit", "no groups"],
)
def test_the_quota_of_a_container_counts(tmp_path, monkeypatch, cgroup, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert available_cores(system(tmp_path, cgroup, files)) == cores


def test_the_cores_that_a_process_may_run_on_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert available_cores(tmp_path) == 2
