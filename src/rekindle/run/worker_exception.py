"""An exception that was raised in a worker, as the main process gets it."""

from __future__ import annotations

import pickle
import traceback
from typing import NamedTuple, NoReturn

from torch._utils import ExceptionWrapper


class WorkerException(NamedTuple):
    """An exception in a form that any process can read: its class is pickled apart, as it may be unknown."""

    kind: bytes
    text: str  # the traceback
    where: str
    reason: str  # its last line

    def reraise(self) -> NoReturn:
        """Raise the exception as torch does: with its type if that is known, and the worker's traceback."""
        wrapper = ExceptionWrapper.__new__(ExceptionWrapper)
        try:
            wrapper.exc_type = pickle.loads(self.kind)
        except Exception:  # A class that exists in the worker only; its name is in the text.
            wrapper.exc_type = RuntimeError
        wrapper.exc_msg, wrapper.where = self.text, self.where
        wrapper.reraise()  # type: ignore[no-untyped-call]
        raise AssertionError("torch's wrapper always raises")


def worker_exception(error: BaseException, where: str) -> WorkerException:
    """An exception ready to be sent to another process."""
    try:
        kind = pickle.dumps(type(error))
    except Exception:  # A class that cannot be pickled, a local one say; its name is in the text.
        kind = pickle.dumps(RuntimeError)
    return WorkerException(
        kind=kind,
        text="".join(traceback.format_exception(error)),
        where=where,
        reason=traceback.format_exception_only(error)[-1].strip(),
    )
