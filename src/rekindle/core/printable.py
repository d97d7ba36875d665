"""Text from data as it is shown: names of files and classes may hold anything, terminals obey some of it."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text with each character escaped that is not printed as itself.

    Those are control characters (an escape sequence can retitle a terminal, or clear it), line ends, marks
    that reverse the direction of writing, and lone surrogates, which stand for bytes of a file's name that
    are no UTF-8 and which no stream can encode.

    >>> printable("cat\x1b[2J\n.png")
    'cat\\x1b[2J\\n.png'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, each of which stays one."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
