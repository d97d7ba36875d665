"""Objects behind a URL, through fsspec: listings, versions, and ranges of bytes.

fsspec's file systems run an event loop in a thread, which a fork does not copy: each process opens its own
file system when it first needs one. Every call goes through `with_retries`.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rekindle.core.given_numbers import integer_of, number_of
from rekindle.core.interrupts import is_interrupt
from rekindle.errors import ArgumentError, MissingPackageError, RemoteError
from rekindle.fetch.remote.range_requests import CHANGED, read_http, read_s3, without_keys_for_others
from rekindle.fetch.remote.redact import secrets_of, shown_cause, text_without_secrets, without_secrets
from rekindle.fetch.remote.retry import RetryPolicy, with_retries

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# What fsspec's file systems report of an object.
ObjectInfo = Mapping[str, object]
# What they call the fields that change when an object does.
_VERSION_FIELDS = (
    "ETag", "etag", "generation", "md5Hash", "crc32c", "content_md5", "Content-MD5", "Digest", "VersionId",
    "md5Checksum", "checksum", "content_hash", "blob_id", "sha", "hex", "CRC",
    "LastModified", "Last-Modified", "last_modified", "modified", "modify", "modificationTime",
    "modification_time", "modifiedTime", "server_modified", "date_time", "updated", "mtime", "created",
)  # fmt: skip
_MIN_SPEED = 64 << 10  # bytes a second: a slower request counts as dead
_PART = 16 << 20  # bytes of one request, at most: what a server claims does not decide how long to wait
_MOST_BYTES = 2**62  # of an object
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}


@dataclass(frozen=True)
class RemoteOptions:
    """How objects behind a URL are read.

    Args:
        storage_options: Arguments of fsspec's file system (`{"anon": True}`, an endpoint, credentials).
        cache_bytes: The size of the cache of ranges on the local disk; 0 is no cache, None is 32 GiB or half
            of the free disk space, whichever is less.
        cache_directory: Where that cache is; by default below `~/.cache/rekindle` (or `$XDG_CACHE_HOME`).
        deadline: Seconds in which a read must succeed, all attempts together.
        attempt_timeout: Seconds after which one attempt is given up. Both are longer for large reads, by the
            time that what has arrived, and the next 16 MiB, take at 64 KiB a second.
        parallel: How many requests a process has in flight at once.
        ahead_bytes: How many prefetched bytes a process may hold that were not read yet.

    """

    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)  # may hold secrets
    cache_bytes: int | None = None
    cache_directory: str | os.PathLike[str] | None = None
    deadline: float = 120.0
    attempt_timeout: float = 30.0
    parallel: int = 16
    ahead_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name, kind in (("deadline", number_of), ("attempt_timeout", number_of), ("parallel", integer_of)):
            number = kind(getattr(self, name))
            if number is None or not number > 0:
                raise ArgumentError(f"{name} must be greater than 0, but got {getattr(self, name)!r}")
            object.__setattr__(self, name, number)
        for name in ("cache_bytes", "ahead_bytes"):
            value = getattr(self, name)
            nbytes = integer_of(value)
            if value is not None and (nbytes is None or nbytes < 0):
                raise ArgumentError(f"{name} is a number of bytes, but got {value!r}")
            object.__setattr__(self, name, nbytes)

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long to retry."""
        return RetryPolicy(self.deadline, min(self.attempt_timeout, self.deadline))


class RemoteObject(NamedTuple):
    """A version of an object: its path in the file system, its size, and what identifies the content."""

    path: str
    size: int
    version: str  # hexadecimal digits
    etag: str = ""
    modified: str = ""  # as in HTTP's Last-Modified
    is_identified: bool = True  # by more than its path and size

    def __repr__(self) -> str:
        return f"RemoteObject({without_secrets(self.path)!r}, size={self.size}, version={self.version!r})"


def is_url(path: object) -> bool:
    """Whether a path is a URL for fsspec (`s3://…`) rather than a local path."""
    return isinstance(path, str) and re.match(r"^[A-Za-z][A-Za-z0-9+.-]+(://|::)", path) is not None


class RemoteStore:
    """The file system that a URL names."""

    def __init__(self, url: str, options: RemoteOptions) -> None:
        self.url, self.options = url, options
        self._secrets = secrets_of(url, options.storage_options)
        self._by_process: dict[int, tuple[AbstractFileSystem, str]] = {}
        try:
            self.path = self._open()[1]
        except OSError as error:  # Its library does not load, or it connects at once and cannot.
            if is_interrupt(error):
                raise
            why = text_without_secrets(str(error), self._secrets)
            problem, cause = f"cannot open {self.name!r}: {why}", shown_cause(error, self._secrets)
        else:
            return
        raise RemoteError(problem) from cause

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        return without_secrets(self.url)

    def name_of(self, path: str) -> str:
        """The URL of an object, without secrets."""
        try:
            return without_secrets(str(self._open()[0].unstrip_protocol(path)))
        except Exception as error:  # It is for messages: one without the scheme is better than none.
            if is_interrupt(error):
                raise
            return without_secrets(path)

    def strip(self, url: str) -> str:
        """The path of another URL of the same file system."""
        return str(self._open()[0]._strip_protocol(url))

    def _open(self) -> tuple[AbstractFileSystem, str]:
        """The file system of this process, and the URL's path in it."""
        process = os.getpid()
        opened = self._by_process.get(process)
        if opened is None:
            # If two threads get here, the first result is kept.
            opened = self._by_process.setdefault(process, self._connect())
        return opened

    def _connect(self) -> tuple[AbstractFileSystem, str]:
        kind = ArgumentError
        try:
            import fsspec

            options: dict[str, Any] = dict(self.options.storage_options)
            if self.url.startswith(("s3://", "s3a://")):  # Retries are ours, and counted.
                options.setdefault("config_kwargs", {"retries": {"max_attempts": 0}})
            if self.url.startswith(("http://", "https://")):
                options["client_kwargs"] = without_keys_for_others(options.get("client_kwargs") or {})
            system, path = fsspec.core.url_to_fs(self.url, **options)
            if isinstance(getattr(system, "retries", None), int):
                system.retries = 1
        except ImportError as error:
            protocol = re.split("://|::", self.url)[0]
            extra = _EXTRAS.get(protocol)
            install = f"pip install 'rekindle[{extra}]'" if extra else "see fsspec's list of file systems"
            problem, kind = f"{self.name!r} needs another package ({error}): {install}", MissingPackageError
            cause: BaseException | None = error
        except (ValueError, TypeError) as error:
            why = text_without_secrets(str(error), self._secrets)
            problem, cause = f"cannot open {self.name!r}: {why}", shown_cause(error, self._secrets)
        else:
            return system, str(path)
        raise kind(problem) from cause

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_process": {}}

    # Listings and descriptions.

    def describe(self, path: str) -> RemoteObject:
        """An object as it is now."""
        info = self._call(f"cannot find {self.name_of(path)!r}", "info", path)
        return self.object_of({**info, "name": path})

    def find(self, path: str) -> dict[str, RemoteObject]:
        """All objects below a path, by their paths."""
        found = self._call(f"cannot list {self.name_of(path)!r}", "find", path, detail=True)
        return {name: self.object_of(info) for name, info in found.items() if info.get("type") != "directory"}

    def list_folder(self, path: str) -> list[ObjectInfo]:
        """What lies directly in a folder, subfolders included, as the file system reports it."""
        listed: list[ObjectInfo] = self._call(f"cannot list {self.name_of(path)!r}", "ls", path, detail=True)
        return listed

    def glob(self, pattern: str) -> list[str]:
        """The paths that a pattern with `*`, `?` or `[…]` matches, sorted."""
        return sorted(self._call(f"cannot list {self.name_of(pattern)!r}", "glob", pattern))

    def is_folder(self, path: str) -> bool:
        """Whether a path is a folder; never over HTTP, where to look for one would read the object."""
        if self.url.startswith(("http://", "https://")):
            return False
        return bool(self._call(f"cannot find {self.name_of(path)!r}", "isdir", path))

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path."""
        return bool(self._call(f"cannot find {self.name_of(path)!r}", "exists", path))

    def object_of(self, info: ObjectInfo) -> RemoteObject:
        """An object, from what the file system reports of it."""
        path = str(info["name"])
        size = info.get("size")
        if not isinstance(size, int) or not 0 <= size <= _MOST_BYTES:
            raise RemoteError(
                f"{self.name_of(path)!r}: the server does not report its size, so no range of it can be read."
            )
        fields = [f"{name}={info[name]}" for name in _VERSION_FIELDS if info.get(name)]
        digest = hashlib.sha256(
            "\n".join([self.url.partition(":")[0], path, str(size), *fields]).encode("utf-8", "replace")
        )
        version, etag = digest.hexdigest()[:16], str(info.get("ETag") or "")
        return RemoteObject(path, size, version, etag, str(info.get("Last-Modified") or ""), bool(fields))

    def _call(self, what: str, method: str, path: str, **keywords: object) -> Any:
        """What a method of the file system returns, which has no types, with retries."""

        def attempt(seconds: float) -> Any:
            system = self._open()[0]
            system.invalidate_cache()
            return _run(system, method, seconds, path, **keywords)

        return with_retries(attempt, what, self.options.retry_policy, self._secrets)

    # Bytes.

    def fetch(self, wanted: RemoteObject, offset: int, length: int) -> bytes:
        """A range of an object, from the server; RemoteError names object, offset and attempts.

        Large ranges are read in parts. How long all of them may take grows with what has arrived, and not
        with what a server says that it has.
        """
        started, parts = time.monotonic(), list[bytes]()
        for start in range(offset, offset + length, _PART):
            part = min(_PART, offset + length - start)
            expected = (start + part - offset) / _MIN_SPEED
            left = self.options.deadline + expected - (time.monotonic() - started)
            parts.append(self._fetch_part(wanted, start, part, left))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fetch_part(self, wanted: RemoteObject, offset: int, length: int, deadline: float) -> bytes:
        what = f"cannot read {self.name_of(wanted.path)!r} at byte {offset:,} ({length:,} bytes)"

        def attempt(seconds: float) -> bytes:
            try:
                data = self._range(wanted, offset, length, seconds)
            except Exception as error:
                if _is_precondition_failure(error):
                    raise RemoteError(CHANGED) from error
                raise
            if len(data) == wanted.size != length:  # A server without range requests sends the whole object.
                data = data[offset : offset + length]
            if len(data) != length:
                raise OSError(f"received {len(data):,} bytes instead of {length:,}")
            return data

        policy = self.options.retry_policy
        timeout = policy.attempt_timeout + length / _MIN_SPEED
        longer = replace(policy, attempt_timeout=timeout, deadline=max(deadline, 0.001))
        return with_retries(attempt, what, longer, self._secrets)

    def _range(self, wanted: RemoteObject, offset: int, length: int, seconds: float) -> bytes:
        from fsspec.asyn import sync

        system = self._open()[0]
        protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
        path, size, etag = wanted.path, wanted.size, wanted.etag
        data: bytes
        if "s3" in protocols and _is_strong(etag) and hasattr(system, "_call_s3"):
            data = sync(system.loop, read_s3, system, path, offset, length, size, etag, timeout=seconds)
        elif "http" in protocols and hasattr(system, "set_session"):
            condition = _condition(wanted)
            data = sync(
                system.loop, read_http, system, path, offset, length, size, condition, timeout=seconds
            )
        else:
            data = _run(system, "cat_file", seconds, path, start=offset, end=offset + length)
        return data


def _run(system: AbstractFileSystem, method: str, seconds: float, path: str, **keywords: object) -> Any:
    """What a method of a file system returns; it gets a timeout if the file system is asynchronous."""
    coroutine: Callable[..., object] | None = getattr(system, f"_{method}", None)
    if getattr(system, "async_impl", False) and coroutine is not None:
        from fsspec.asyn import sync

        return sync(system.loop, coroutine, path, timeout=seconds, **keywords)
    return getattr(system, method)(path, **keywords)


def _is_strong(etag: str) -> bool:
    """Whether an ETag identifies the exact bytes: a weak one cannot be a condition of a range request."""
    return bool(etag) and not etag.startswith("W/")


def _condition(wanted: RemoteObject) -> dict[str, str]:
    """The HTTP header that makes a request fail if the object has changed; none if there is no way."""
    if _is_strong(wanted.etag):
        return {"If-Match": wanted.etag}
    return {"If-Unmodified-Since": wanted.modified} if wanted.modified else {}


def _is_precondition_failure(error: BaseException) -> bool:
    """Whether a server has another version than the one that was requested."""
    return getattr(error, "status", None) == 412 or "precondition" in str(error).lower()
