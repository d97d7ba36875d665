"""An exception of a worker, told to the main process."""

from __future__ import annotations

import pickle
import traceback
from typing import NamedTuple, NoReturn

from torch._utils import ExceptionWrapper


class ToldError(NamedTuple):
    """An exception as it can be sent: its class apart, because the other side may not know it."""

    kind: bytes
    text: str  # the traceback
    where: str
    reason: str  # the last line of it

    def raise_again(self) -> NoReturn:
        """Raise it here as torch does, with its type if that is known, with the worker's traceback."""
        wrapper = ExceptionWrapper.__new__(ExceptionWrapper)
        try:
            wrapper.exc_type = pickle.loads(self.kind)
        except Exception:  # A class that exists in the worker only; its name is in the text.
            wrapper.exc_type = RuntimeError
        wrapper.exc_msg, wrapper.where = self.text, self.where
        wrapper.reraise()  # type: ignore[no-untyped-call]
        raise AssertionError("torch's wrapper always raises")


def tell(error: BaseException, where: str) -> ToldError:
    """An exception ready to be sent to another process."""
    try:
        kind = pickle.dumps(type(error))
    except Exception:
        kind = pickle.dumps(RuntimeError)
    return ToldError(
        kind=kind,
        text="".join(traceback.format_exception(error)),
        where=where,
        reason=traceback.format_exception_only(error)[-1].strip(),
    )
