"""JSON that somebody else wrote: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
import re

_HALF_A_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(content: str | bytes) -> object:
    """What the text stands for; ValueError if it is not JSON, or nested more deeply than Python can follow.

    Also if a name in it is no text: half of a character, which nothing can be written with. The halves that
    stand for bytes of a file's name that are no UTF-8 are allowed.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    # Strictly: Python's own way from bytes lets halves pass.
    text = content if isinstance(content, str) else content.decode(json.detect_encoding(content))
    try:
        parsed: object = json.loads(text)
        if _HALF_A_CHARACTER.search(text):
            json.dumps(parsed, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"it has half a character, {error.object[error.start]!a}") from None
    return parsed
