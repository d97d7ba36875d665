"""URLs as they may be shown: no password, and no query, which may be a signature."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"://[^/\s]*@")
# Up to what ends a word: quotes and the like around a URL are not its own.
_QUERY = re.compile(r"(://[^\s?]*)\?\S*?(?=['\")\]>.,;:]*(?:\s|$))")


def without_secrets(url: str) -> str:
    """A URL as it may be shown.

    >>> without_secrets("ftp://me:secret@host/x?signature=1")
    'ftp://host/x'
    """
    return _LOGIN.sub("://", url).partition("?")[0]


def text_without_secrets(text: str) -> str:
    """A text, with each URL in it as it may be shown.

    >>> text_without_secrets("403, url='https://me:secret@host/x?signature=1' is forbidden")
    "403, url='https://host/x' is forbidden"
    """
    return _QUERY.sub(r"\1", _LOGIN.sub("://", text))


def shown_cause(error: BaseException) -> BaseException | None:
    """The error, to be the cause of another; None if it, or what led to it, would show a secret."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        if text_without_secrets(str(one)) != str(one):
            return None
        chain.append(one)
        one = one.__cause__ or one.__context__
    return error
