"""Whose file is it, and who else can change it?"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from collections.abc import Collection


def others_can_write(state: os.stat_result) -> bool:
    """Whether users other than the owner (and root) can write to a file or directory.

    A group that has no member but the owner, as many systems give every user, does not count.
    """
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and not _is_own_group(state.st_gid, state.st_uid)


def is_trusted(state: os.stat_result, owners: Collection[int] = ()) -> bool:
    """Whether a file belongs to this user, to root or to one of `owners`, and nobody else can change it."""
    return state.st_uid in {os.geteuid(), 0, *owners} and not others_can_write(state)


@functools.lru_cache(maxsize=64)
def _is_own_group(gid: int, uid: int) -> bool:
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
