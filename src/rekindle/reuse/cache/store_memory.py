"""The memory of a store: all arrays and tables that its parts have in it."""

from __future__ import annotations

from rekindle.core.memfd import MemoryFile
from rekindle.reuse.cache import admission_rule, claims, disk_index, host_memory, members, memory_tier
from rekindle.reuse.cache.kept_generations import KeptGenerations
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory


def store_memory(
    size: int, kept: KeptGenerations, heap: int, name: str, disk: bool, file: MemoryFile | None
) -> SharedMemory:
    """The memory of a store: new, or that of a file which was found; ValueError if that is no such memory."""
    rows = size * kept.ways
    fields: list[Field] = [
        *host_memory.FIELDS,
        *memory_tier.FIELDS,
        *members.FIELDS,
        *claims.FIELDS,
        *admission_rule.fields(size),
    ]
    tables = memory_tier.tables(rows)
    if disk:
        fields += disk_index.FIELDS
        tables |= disk_index.tables(rows)
    if file is None:
        return SharedMemory(fields, tables, heap, name=name)
    attached = SharedMemory.attached(file.identity)
    if attached is not None:
        return attached.used_again()
    fd = file.open()
    if fd is None:
        raise ValueError(f"{file.path} is gone")
    return SharedMemory(fields, tables, heap, fd=fd, name=name)
