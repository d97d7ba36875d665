"""Acting as other users of the machine, and what they may see."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALICE, MALLORY = 65534, 65533
needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    """What this process does is done with the rights of another user."""
    groups, mask = os.getgroups(), os.umask(0o022)
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(mask)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> set[int]:
    """The permissions of a folder and of all that is in it."""
    return {stat.S_IMODE(path.lstat().st_mode) for path in [folder, *folder.rglob("*")]}
