"""Trying again: exponential back-off with jitter, up to a deadline.

The jitter comes from `rekindle.keys`, by what is read and the number of the attempt: readers of different
ranges spread out after a server's restart, and a run that is repeated waits as the first one did.
"""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rekindle import keys
from rekindle.errors import RemoteError
from rekindle.fetch.shown_urls import shown_cause, text_without_secrets

Result = TypeVar("Result")

_FINAL_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    TypeError,
    AttributeError,
    NotImplementedError,
)
_FINAL_NAMES = (
    "NoCredentialsError",
    "InvalidURL",
    "InvalidUrlClientError",
    "ClientConnectorCertificateError",
)
_LOST_NAMES = {"ClientConnectionError", "ClientPayloadError"}  # of aiohttp, and not all of them OSError
_TEMPORARY_STATUS = (408, 425, 429)
_JITTER = 0xFFFFFFF0  # a step of its own among those of `keys`


@dataclass(frozen=True)
class Patience:
    """How long to try: seconds in all, for one attempt, before the second one, and between two at most."""

    deadline: float = 120.0
    attempt: float = 30.0
    first_wait: float = 0.1
    longest_wait: float = 10.0


def wait_before(attempt: int, what: str, patience: Patience) -> float:
    """Seconds to wait before an attempt (from 1 on): doubled each time, the upper half of it by chance."""
    whole = min(patience.first_wait * 2.0 ** min(attempt - 1, 30), patience.longest_wait)
    share = float(keys.uniforms(zlib.crc32(what.encode()), attempt, step=_JITTER)[0, 0])
    return whole * (0.5 + 0.5 * share)


def persist(action: Callable[[float], Result], what: str, patience: Patience) -> Result:
    """What `action` gives, tried until it does; it is told how many seconds an attempt may take.

    RemoteError if it has not succeeded at the deadline, or if an error will not pass. The message begins with
    `what` and tells how often it was tried.
    """
    started = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        left = patience.deadline - (time.monotonic() - started)
        try:
            return action(max(min(patience.attempt, left), 0.001))
        except Exception as error:
            final = is_final(error)
            wait = wait_before(attempt, what, patience)
            if not final and time.monotonic() - started + wait < patience.deadline:
                time.sleep(wait)
                continue
            took = time.monotonic() - started
            advice = "" if final else f" Raise deadline= (now {patience.deadline:g} s) if it needs longer."
            tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
            told = f"{what}: {tries} in {took:.1f} s, the last: {_told(_failure(error))}.{advice}"
            raise RemoteError(told) from shown_cause(error)


def is_final(error: BaseException) -> bool:
    """Whether trying again cannot help: nothing there, no right to it, changed, or not how it is asked."""
    failure = _failure(error)
    if isinstance(failure, (RemoteError, *_FINAL_ERRORS)) or type(failure).__name__ in _FINAL_NAMES:
        return True
    if failure is not error and getattr(failure, "errno", None) == socket.EAI_NONAME:
        return True  # When something is opened, a host that nobody knows is a misspelt one.
    status = getattr(failure, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in _TEMPORARY_STATUS


def _failure(error: BaseException) -> BaseException:
    """What went wrong: over HTTP, fsspec calls whatever it is "not found", and has it as the cause."""
    cause = error.__cause__
    if cause is None or not isinstance(error, FileNotFoundError):
        return error
    is_answer = isinstance(getattr(cause, "status", None), int)
    is_lost = isinstance(cause, OSError) or any(kind.__name__ in _LOST_NAMES for kind in type(cause).__mro__)
    return cause if is_answer or is_lost else error


def _told(error: BaseException) -> str:
    if isinstance(error, RemoteError):
        return str(error)
    text = text_without_secrets(str(error)).replace("\n", " ").strip().rstrip(".")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
