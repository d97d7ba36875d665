"""What the cached part of a sample depends on: whatever computes it, and the files that it reads.

Two processes that find the same fingerprint compute the same parts, so they may share a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rekindle.core.analysis.look_at_code import library_settings
from rekindle.prepare.declared import fingerprint
from rekindle.reuse.content_digest import content_digest
from rekindle.reuse.named_files import NamedFiles
from rekindle.reuse.split_dataset import NativeSplit, Split


class PartFingerprint(NamedTuple):
    """Equal for two splits that compute the same parts of samples from the same files."""

    code: str
    files: NamedFiles


def part_fingerprint(split: Split, steps: Sequence[object]) -> PartFingerprint | None:
    """What the parts of samples depend on; None if that cannot be found out.

    `steps` are those before the split. A dataset that declares a `fingerprint` is taken at its word.
    """
    declared = fingerprint(split.read_from)
    first = split.first_part if declared is None else (declared, steps, isinstance(split, NativeSplit))
    files = NamedFiles()
    digest = content_digest((type(split).__name__, first, library_settings()), files)
    return None if digest is None else PartFingerprint(digest, files)
