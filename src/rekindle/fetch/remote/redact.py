"""URLs without secrets, for messages: no password, no query and no fragment, which may be a signature."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from rekindle.core.printable import printable_lines

# A password may hold any character, a slash as well: it ends at the last @. Digits and a slash after the
# colon may be a port, which is shown; what follows it up to an @ is not.
_LOGIN = re.compile(r"://(?:([^/:?#\s]*:\d*/)\S*@|[^/:?#\s]*:\S*@|[^/?#\s]*@)")
# Up to the end of the word: quotes and punctuation around a URL are not part of it.
_QUERY = re.compile(r"(://[^\s?#]*)[?#]\S*?(?=['\")\]>.,;:]*(?:\s|$))")
_SHORTEST = 4  # characters of a secret that is looked for in texts
_HIDDEN = "…"
_PUBLIC = {"endpoint_url", "region_name", "protocol", "host", "hostname", "username", "User-Agent"}


def without_secrets(url: str) -> str:
    """The URL without password, query and fragment.

    >>> without_secrets("ftp://me:secret@host/x?signature=1")
    'ftp://host/x'
    """
    # Whatever a URL holds, it is one: spaces do not end it.
    joined = re.sub(r"\s", "\0", url)
    return re.split("[?#]", _without_login(joined), maxsplit=1)[0].replace("\0", " ")


def text_without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """The text, with each URL in it without password, query and fragment, and without the `known` secrets.

    >>> text_without_secrets("403, url='https://me:secret@host/x?signature=1' is forbidden")
    "403, url='https://host/x' is forbidden"
    """
    for secret in known:
        text = text.replace(secret, _HIDDEN)
    return _QUERY.sub(r"\1", _without_login(text))


def _without_login(text: str) -> str:
    return _LOGIN.sub(lambda match: f"://{match[1]}{_HIDDEN}@" if match[1] else "://", text)


def secrets_of(url: str, options: Mapping[str, object]) -> tuple[str, ...]:
    """What must not be shown of a URL and of the arguments of its file system, longest first.

    >>> secrets_of("http://me:pass/word@host/x", {"headers": {"X-Api-Key": "abcd"}})
    ('pass/word', 'abcd', 'pass', 'word')
    """
    found: set[str] = set()
    for login in re.findall(r"://(.*)@", url, re.DOTALL):
        password = login.partition(":")[2]
        found.update([password, *re.split("[/?#@:]", password)])  # A library may show it up to one of these.
    hidden = re.split("[?#]", url, maxsplit=1)[1:]
    for part in hidden:
        pieces = re.split("[?#&;]", part)
        found.update([part, *pieces, *(piece.partition("=")[2] for piece in pieces)])
    found.update(_strings(options, 0))
    found |= {change(one) for one in found for change in (quote, unquote)}
    # What is in the URL that is shown is no secret: a message without "https" would say nothing.
    shown = without_secrets(url)
    found = {one for one in found if len(one) >= _SHORTEST and one not in shown}
    return tuple(sorted(found, key=lambda one: (-len(one), one)))


def _strings(value: object, depth: int) -> Iterable[str]:
    """The values in arguments, of which any may be a key."""
    if isinstance(value, str):
        yield value
        yield value.rpartition(" ")[2]  # the token of "Bearer …"
    elif isinstance(value, Mapping) and depth < 4:
        for name, inner in value.items():
            if name not in _PUBLIC:
                yield from _strings(inner, depth + 1)
    elif isinstance(value, list | tuple) and depth < 4:
        for inner in value:
            yield from _strings(inner, depth + 1)


def shown_cause(error: BaseException, known: Iterable[str] = ()) -> BaseException | None:
    """The error, to chain to another; None if it, or one of its chain, would show a secret or move a cursor.

    A library's text holds an object's name as it is, with whatever control characters the server gave it.
    """
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    known = tuple(known)
    while waiting:
        one = waiting.pop()
        if one is None or any(one is other for other in chain):
            continue
        for text in (str(one), repr(one), *getattr(one, "__notes__", ())):
            if text_without_secrets(text, known) != text or printable_lines(text) != text:
                return None
        chain.append(one)
        waiting += [one.__cause__, one.__context__]
    return error
