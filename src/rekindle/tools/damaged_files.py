"""Which of many packed files are damaged: opening them together ends at the first."""

from __future__ import annotations

from collections.abc import Mapping

from rekindle.core.limits import DEFAULT_LIMITS
from rekindle.errors import FormatError
from rekindle.fetch.open_source import indexer_for, local_files
from rekindle.fetch.packed.gzip_cache import unzipped
from rekindle.fetch.remote.files import packed_files
from rekindle.fetch.remote.object_store import RemoteOptions, is_url


def damaged_files(path: str, labels: str | None, options: Mapping[str, object]) -> list[str]:
    """The error of each file that cannot be indexed by itself, of those that a path or pattern matches."""
    files = packed_files(path, RemoteOptions()) if is_url(path) else local_files(path)
    errors = []
    for file in files or ():
        try:
            whole = unzipped(file)
            indexer, settings, _ = indexer_for([whole], labels, options)
            indexer([whole.for_indexing()], settings, lambda _: None, DEFAULT_LIMITS)
        except FormatError as error:
            errors.append(str(error))
    return errors
