"""Objects behind a URL: what there is, which version of it, and ranges of its bytes, through fsspec.

fsspec's file systems live with an event loop in a thread, which a fork does not copy: each process asks for
its own when it first needs one. Every call goes through `persist`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rekindle.errors import ArgumentError, RemoteError
from rekindle.fetch.patience import Patience, persist
from rekindle.fetch.shown_urls import shown_cause, text_without_secrets, without_secrets

# What file systems call the things that change when an object does.
_VERSION_FIELDS = (
    "ETag", "etag", "generation", "md5Hash", "crc32c", "content_md5", "Content-MD5", "Digest", "VersionId",
    "md5Checksum", "checksum", "content_hash", "blob_id", "sha", "hex", "CRC",
    "LastModified", "Last-Modified", "last_modified", "modified", "modify", "modificationTime",
    "modification_time", "modifiedTime", "server_modified", "date_time", "updated", "mtime", "created",
)  # fmt: skip
_SLOWEST = 64 << 10  # bytes a second: a request that is slower than this is taken for dead
_CHANGED = "the object has changed since it was opened; open it again"
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}


@dataclass(frozen=True)
class RemoteOptions:
    """How objects behind a URL are read.

    Args:
        storage_options: What fsspec's file system takes (`{"anon": True}`, an endpoint, credentials).
        cache_bytes: How much of the local disk what was read may take; 0 keeps nothing, None is 32 GiB or
            half of what the disk has free.
        cache_directory: Where it is kept; by default below `~/.cache/rekindle` (or `$XDG_CACHE_HOME`).
        deadline: Seconds in which a read must succeed, all attempts together.
        attempt_timeout: Seconds after which one attempt is given up. Both are longer for large reads, by the
            time that these take at 64 KiB a second.
        parallel: How many reads a process has under way at once.
        ahead_bytes: How many bytes a process may hold that were fetched ahead and not used yet.

    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold secrets
    cache_bytes: int | None = None
    cache_directory: str | os.PathLike[str] | None = None
    deadline: float = 120.0
    attempt_timeout: float = 30.0
    parallel: int = 16
    ahead_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name in ("deadline", "attempt_timeout", "parallel"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be greater than 0, but got {getattr(self, name)!r}")
        for name in ("cache_bytes", "ahead_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ArgumentError(f"{name} is a number of bytes, but got {value!r}")

    @property
    def patience(self) -> Patience:
        """How long to try."""
        return Patience(self.deadline, min(self.attempt_timeout, self.deadline))


class RemoteObject(NamedTuple):
    """One object: where the file system has it, how long it is, and which version of it is meant."""

    path: str
    size: int
    version: str  # hexadecimal digits
    etag: str = ""
    modified: str = ""  # as HTTP tells it
    is_identified: bool = True  # by more than its path and size


def is_url(path: Any) -> bool:
    """Whether a path is one for fsspec (`s3://…`) and not of this machine."""
    return isinstance(path, str) and re.match(r"^[A-Za-z][A-Za-z0-9+.-]+(://|::)", path) is not None


class RemoteStore:
    """The file system that a URL names."""

    def __init__(self, url: str, options: RemoteOptions) -> None:
        self.url, self.options = url, options
        self._by_process: dict[int, tuple[Any, str]] = {}
        self.path = self._open()[1]

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        return without_secrets(self.url)

    def name_of(self, path: str) -> str:
        """The URL of an object, without secrets."""
        try:
            return without_secrets(str(self._open()[0].unstrip_protocol(path)))
        except Exception:
            return without_secrets(path)

    def strip(self, url: str) -> str:
        """What another URL of the same file system is called in it."""
        return str(self._open()[0]._strip_protocol(url))

    def _open(self) -> tuple[Any, str]:
        """The file system of this process, and what the URL is called in it."""
        process = os.getpid()
        opened = self._by_process.get(process)
        if opened is None:
            # Two threads may both get here: the first result stays.
            opened = self._by_process.setdefault(process, self._open_anew())
        return opened

    def _open_anew(self) -> tuple[Any, str]:
        try:
            import fsspec

            options = dict(self.options.storage_options)
            if self.url.startswith(("s3://", "s3a://")):  # Trying again is ours, and counted.
                options.setdefault("config_kwargs", {"retries": {"max_attempts": 0}})
            system, path = fsspec.core.url_to_fs(self.url, **options)
            if isinstance(getattr(system, "retries", None), int):
                system.retries = 1
        except ImportError as error:
            protocol = re.split("://|::", self.url)[0]
            extra = _EXTRAS.get(protocol)
            install = f"pip install 'rekindle[{extra}]'" if extra else "see fsspec's list of file systems"
            raise ArgumentError(f"{self.name!r} needs another package ({error}): {install}") from error
        except (ValueError, TypeError) as error:
            why = text_without_secrets(str(error))
            raise ArgumentError(f"cannot open {self.name!r}: {why}") from shown_cause(error)
        return system, str(path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_process": {}}

    # What there is.

    def describe(self, path: str) -> RemoteObject:
        """An object as it is now."""
        info = self._call(f"cannot find {self.name_of(path)!r}", "info", path)
        return self.object_of({**info, "name": path})

    def find(self, path: str) -> dict[str, RemoteObject]:
        """All objects below a path, by their paths."""
        found = self._call(f"cannot list {self.name_of(path)!r}", "find", path, detail=True)
        return {name: self.object_of(info) for name, info in found.items() if info.get("type") != "directory"}

    def top(self, path: str) -> list[dict[str, Any]]:
        """What lies right below a path: the file system's descriptions, folders among them."""
        listed: list[dict[str, Any]] = self._call(
            f"cannot list {self.name_of(path)!r}", "ls", path, detail=True
        )
        return listed

    def glob(self, pattern: str) -> list[str]:
        """The paths that a pattern with `*`, `?` or `[…]` fits, sorted."""
        return sorted(self._call(f"cannot list {self.name_of(pattern)!r}", "glob", pattern))

    def is_folder(self, path: str) -> bool:
        """Whether there is something below a path. HTTP has no folders; to look for one reads the object."""
        if self.url.startswith(("http://", "https://")):
            return False
        return bool(self._call(f"cannot find {self.name_of(path)!r}", "isdir", path))

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path."""
        return bool(self._call(f"cannot find {self.name_of(path)!r}", "exists", path))

    def object_of(self, info: Mapping[str, Any]) -> RemoteObject:
        """What a file system's description of an object says."""
        path = str(info["name"])
        size = info.get("size")
        if not isinstance(size, int):
            raise RemoteError(
                f"{self.name_of(path)!r}: the server does not tell its size, so no part of it can be read."
            )
        told = [f"{name}={info[name]}" for name in _VERSION_FIELDS if info.get(name)]
        digest = hashlib.sha256("\n".join([self.url.partition(":")[0], path, str(size), *told]).encode())
        version, etag = digest.hexdigest()[:16], str(info.get("ETag") or "")
        return RemoteObject(path, size, version, etag, str(info.get("Last-Modified") or ""), bool(told))

    def _call(self, what: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        def attempt(seconds: float) -> Any:
            system = self._open()[0]
            system.invalidate_cache()
            return _run(system, method, seconds, *arguments, **keywords)

        return persist(attempt, what, self.options.patience)

    # Bytes.

    def fetch(self, wanted: RemoteObject, offset: int, length: int) -> bytes:
        """A range of an object, from the server; RemoteError names object, offset and attempts."""
        if length == 0:
            return b""
        what = f"cannot read {self.name_of(wanted.path)!r} at byte {offset:,} ({length:,} bytes)"

        def attempt(seconds: float) -> bytes:
            try:
                data = self._range(wanted, offset, length, seconds)
            except Exception as error:
                if _is_refused(error):
                    raise RemoteError(_CHANGED) from error
                raise
            if len(data) == wanted.size != length:  # A server that knows no ranges sends the whole.
                data = data[offset : offset + length]
            if len(data) != length:
                raise OSError(f"{len(data):,} bytes came instead of {length:,}")
            return data

        patience, extra = self.options.patience, length / _SLOWEST
        longer = replace(patience, attempt=patience.attempt + extra, deadline=patience.deadline + extra)
        return persist(attempt, what, longer)

    def _range(self, wanted: RemoteObject, offset: int, length: int, seconds: float) -> bytes:
        system = self._open()[0]
        end = offset + length
        protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
        extra: dict[str, Any] = {}
        if "s3" in protocols and _is_strong(wanted.etag) and hasattr(system, "_call_s3"):
            return _run_s3(system, wanted, offset, end, seconds)
        if "http" in protocols:
            headers = dict(system.kwargs.get("headers") or {})
            extra = {"headers": {**headers, **_unchanged(wanted)}}
        data: bytes = _run(system, "cat_file", seconds, wanted.path, start=offset, end=end, **extra)
        return data


def _run(system: Any, method: str, seconds: float, *arguments: Any, **keywords: Any) -> Any:
    """A method of a file system, with a limit of time where there is a way to set one."""
    slow: Callable[..., Any] | None = getattr(system, f"_{method}", None)
    if getattr(system, "async_impl", False) and slow is not None:
        from fsspec.asyn import sync

        return sync(system.loop, slow, *arguments, timeout=seconds, **keywords)
    return getattr(system, method)(*arguments, **keywords)


def _run_s3(system: Any, wanted: RemoteObject, offset: int, end: int, seconds: float) -> bytes:
    """A range of exactly this version: s3fs has no argument for that."""
    from fsspec.asyn import sync

    bucket, key, version = system.split_path(wanted.path)
    which = {"VersionId": version} if version else {}

    async def get() -> bytes:
        answer = await system._call_s3(
            "get_object",
            Bucket=bucket,
            Key=key,
            Range=f"bytes={offset}-{end - 1}",
            IfMatch=wanted.etag,
            **which,
        )
        try:
            # Not every server looks at what must match, nor has the same quotes everywhere.
            if str(answer.get("ETag") or wanted.etag).strip('"') != wanted.etag.strip('"'):
                raise RemoteError(_CHANGED)
            data: bytes = await answer["Body"].read()
            return data
        finally:
            answer["Body"].close()

    read: bytes = sync(system.loop, get, timeout=seconds)
    return read


def _is_strong(etag: str) -> bool:
    """Whether it stands for the very bytes: those that do not cannot be asked for."""
    return bool(etag) and not etag.startswith("W/")


def _unchanged(wanted: RemoteObject) -> dict[str, str]:
    """The condition that HTTP knows for an object to be the one that was opened; none if there is no way."""
    if _is_strong(wanted.etag):
        return {"If-Match": wanted.etag}
    return {"If-Unmodified-Since": wanted.modified} if wanted.modified else {}


def _is_refused(error: BaseException) -> bool:
    """Whether a server has another version than the one that was asked for."""
    return getattr(error, "status", None) == 412 or "precondition" in str(error).lower()


def cache_below(options: RemoteOptions, kind: str) -> Path:
    """The directory for caches of a kind."""
    from rekindle.fetch.range_cache import cache_directory

    return Path(options.cache_directory or cache_directory()) / kind
