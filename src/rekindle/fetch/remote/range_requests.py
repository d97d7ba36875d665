"""One range of an object from a server that may do anything: read up to its length, and no further.

fsspec's `cat_file` reads whatever a server sends, without an end if there is none. Here the head of an answer
is compared with what was asked for, and then as many bytes are read as that was.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from rekindle.errors import RemoteError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CHANGED = "the object has changed since it was opened; open it again"
_CHUNK = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
# What a request tells another server than the one that it was meant for: no key, no token, no cookie.
_HARMLESS = {
    "accept", "accept-encoding", "user-agent", "range", "if-match", "if-unmodified-since", "host",
}  # fmt: skip


async def read_http(
    system: AbstractFileSystem, url: str, offset: int, length: int, size: int, headers: Mapping[str, str]
) -> bytes:
    """A range of an object of `size` bytes, over HTTP; `headers` are sent with the request."""
    keywords = dict(system.kwargs)
    own = dict(keywords.pop("headers", None) or {})
    asked = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
    session = await system.set_session()
    request = session.get(
        system.encode_url(url), headers={**own, **headers, **asked}, auto_decompress=False, **keywords
    )
    async with request as answer:
        system._raise_not_found_for_status(answer, url)
        if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
            raise RemoteError("the server sends it compressed, though it was asked not to")
        whole = answer.status != 206
        if not whole:
            _check_content_range(answer.headers.get("Content-Range", ""), offset, length, size)
        _check_length(answer.headers.get("Content-Length"), size if whole else length)
        return await collect(answer.content.read, offset if whole else 0, length, more=whole)


async def read_s3(
    system: AbstractFileSystem, path: str, offset: int, length: int, size: int, etag: str
) -> bytes:
    """A range of exactly this version of an object of `size` bytes, for which s3fs has no argument."""
    bucket, key, version = system.split_path(path)
    which = {"VersionId": version} if version else {}
    answer: Mapping[str, Any] = await system._call_s3(
        "get_object",
        Bucket=bucket,
        Key=key,
        Range=f"bytes={offset}-{offset + length - 1}",
        IfMatch=etag,
        **which,
    )
    try:
        # Not every server checks IfMatch, nor quotes ETags in the same way everywhere.
        if str(answer.get("ETag") or etag).strip('"') != etag.strip('"'):
            raise RemoteError(CHANGED)
        sent = answer.get("ContentLength")
        whole = sent == size != length and not answer.get("ContentRange")
        _check_length(sent, size if whole else length)
        return await collect(answer["Body"].read, offset if whole else 0, length, more=whole)
    finally:
        answer["Body"].close()


async def collect(read: Callable[[int], Awaitable[bytes]], skip: int, length: int, *, more: bool) -> bytes:
    """The next bytes after the first `skip`; OSError if there are fewer.

    RemoteError if more follow, unless there may be: a server without ranges sends the whole object.
    """
    while skip:
        passed = await read(min(skip, _CHUNK))
        if not passed:
            raise OSError(f"the answer ended {skip:,} bytes before the range begins")
        skip -= len(passed)
    found = bytearray()
    while len(found) < length:
        part = await read(min(length - len(found), _CHUNK))
        if not part:
            raise OSError(f"received {len(found):,} bytes instead of {length:,}")
        found += part
    if not more and await read(1):
        raise RemoteError(f"the server sends more than the {length:,} bytes it was asked for")
    return bytes(found)


def without_keys_for_others(client: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of aiohttp's session, with which a redirect to another server carries no key.

    aiohttp leaves out the `Authorization` header only; keys have other names as well (`X-Api-Key`).
    """
    return {**client, "trace_configs": [*client.get("trace_configs", ()), _trace()]}


def _trace() -> Any:
    if not _TRACES:
        import aiohttp

        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_leave_out_keys)
        _TRACES.append(trace)
    return _TRACES[0]


_TRACES: list[Any] = []  # One for all: fsspec compares the arguments of its file systems.


async def _leave_out_keys(session: Any, context: Any, redirect: Any) -> None:
    from yarl import URL

    location = redirect.response.headers.get("Location") or redirect.response.headers.get("URI") or ""
    try:
        target = redirect.url.join(URL(location))
        same = target.origin() == redirect.url.origin()
    except ValueError:  # aiohttp refuses it in a moment.
        same = False
    if not same:
        for name in [name for name in redirect.headers if name.lower() not in _HARMLESS]:
            del redirect.headers[name]


def _check_content_range(text: str, offset: int, length: int, size: int) -> None:
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        raise OSError(f"expected bytes {offset:,} to {offset + length - 1:,}, the server names no range")
    first, last, total = match.groups()
    if (int(first), int(last)) != (offset, offset + length - 1):
        raise OSError(f"expected bytes {offset:,} to {offset + length - 1:,}, the server sends {text[:60]!r}")
    if total != "*" and int(total) != size:
        raise RemoteError(CHANGED)


def _check_length(sent: object, expected: int) -> None:
    """OSError or RemoteError if a server announces another number of bytes than expected."""
    if sent is None:
        return
    if not str(sent).isdecimal() or int(str(sent)[:20]) < expected:
        raise OSError(f"the server sends {str(sent)[:20]} bytes instead of {expected:,}")
    if int(str(sent)[:20]) > expected:
        raise RemoteError(f"the server sends {str(sent)[:20]} bytes instead of {expected:,}")
