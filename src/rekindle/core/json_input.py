"""JSON that somebody else wrote: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json


def parse_json(content: str | bytes) -> object:
    """What the text stands for; ValueError if it is not JSON, or nested more deeply than Python can follow.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    try:
        parsed: object = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return parsed
