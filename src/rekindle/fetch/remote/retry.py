"""Retries: exponential backoff with jitter, up to a deadline.

The jitter comes from `rekindle.core.counter_rng`, keyed by what is read and the number of the attempt:
readers of different ranges spread out after a server's restart, and a repeated run waits as the first one
did.

Why not tenacity: the loop below has 18 lines; with tenacity 9.2 it had 17, because backoff, the rule for
errors that are final, the message and the time left for an attempt are ours either way. A read that succeeds
at once, as nearly all do, spent 50 µs in tenacity and spends 1.5 µs here.
"""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from rekindle.core import counter_rng
from rekindle.core.interrupts import is_interrupt
from rekindle.errors import RemoteError, RemoteNotFoundError
from rekindle.fetch.remote.redact import shown_cause, text_without_secrets

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
_CONNECTION_NAMES = {"ClientConnectionError", "ClientPayloadError"}  # of aiohttp; not all of them are OSError
_TEMPORARY_STATUS = (408, 425, 429)
_JITTER = 0xFFFFFFF0  # a step of its own among those of `counter_rng`


@dataclass(frozen=True)
class RetryPolicy:
    """How long to retry, in seconds."""

    deadline: float = 120.0  # for all attempts together
    attempt_timeout: float = 30.0
    initial_backoff: float = 0.1
    max_backoff: float = 10.0


def backoff(attempt: int, what: str, policy: RetryPolicy) -> float:
    """Seconds to wait after an attempt (from 1 on): doubled each time, the upper half of it random."""
    longest = min(policy.initial_backoff * 2.0 ** min(attempt - 1, 30), policy.max_backoff)
    share = float(
        counter_rng.uniforms(zlib.crc32(what.encode("utf-8", "surrogatepass")), attempt, step=_JITTER)[0, 0]
    )
    return longest * (0.5 + 0.5 * share)


def with_retries(
    action: Callable[[float], Result], what: str, policy: RetryPolicy, secrets: Iterable[str] = ()
) -> Result:
    """The result of `action`, called until it succeeds with the seconds that this attempt may take.

    RemoteError if it has not succeeded by the deadline, or at once if its error is final. The message begins
    with `what` and has the number of attempts, and nothing of the `secrets`.
    """
    started = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        left = policy.deadline - (time.monotonic() - started)
        try:
            return action(max(min(policy.attempt_timeout, left), 0.001))
        except Exception as error:
            if is_interrupt(error):
                raise
            final = is_final(error)
            wait = backoff(attempt, what, policy)
            took = time.monotonic() - started
            if not final and took + wait < policy.deadline:
                time.sleep(wait)
                continue
            failure = _failure(error)
            advice = (
                _advice(failure)
                if final
                else f" Raise deadline= (now {policy.deadline:g} s) if it needs longer."
            )
            tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
            described = _describe(failure, secrets)
            message = f"{what}: {tries} in {took:.1f} s, the last: {described}.{advice}"
            cause = shown_cause(error, secrets)
            is_missing = isinstance(failure, FileNotFoundError) or getattr(failure, "status", None) == 404
        # Not raised above: an exception keeps the one that is being handled as its context, if only hidden.
        raise (RemoteNotFoundError if is_missing else RemoteError)(message) from cause


def _advice(failure: BaseException) -> str:
    """What to do about an error that a retry cannot help."""
    if type(failure).__name__ != "NoCredentialsError":
        return ""
    return (
        " Give them in the environment or a profile; for public data, open it with "
        'remote=RemoteOptions(storage_options={"anon": True}).'
    )


def is_final(error: BaseException) -> bool:
    """Whether a retry cannot help: not found, forbidden, changed, or an invalid request."""
    failure = _failure(error)
    if isinstance(failure, (RemoteError, *_FINAL_ERRORS)) or type(failure).__name__ in _FINAL_NAMES:
        return True
    if failure is not error and getattr(failure, "errno", None) == socket.EAI_NONAME:
        return True  # When data is opened, an unknown host is most likely a misspelt one.
    status = getattr(failure, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in _TEMPORARY_STATUS


def _failure(error: BaseException) -> BaseException:
    """What really failed: over HTTP, fsspec raises "not found" for any error, and has that as the cause."""
    cause = error.__cause__
    if cause is None or not isinstance(error, FileNotFoundError):
        return error
    has_status = isinstance(getattr(cause, "status", None), int)
    is_connection = isinstance(cause, OSError) or any(
        kind.__name__ in _CONNECTION_NAMES for kind in type(cause).__mro__
    )
    return cause if has_status or is_connection else error


def _describe(error: BaseException, secrets: Iterable[str]) -> str:
    text = text_without_secrets(str(error), secrets).replace("\n", " ").strip().rstrip(".")
    if isinstance(error, RemoteError):
        return text
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
