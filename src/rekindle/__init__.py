"""Rekindle: the DataLoader you already use, without the waiting.

>>> import rekindle as rk
>>> loader = rk.DataLoader(range(8), batch_size=4, shuffle=True, seed=1)
>>> sorted(sample for batch in loader for sample in batch.tolist())
[0, 1, 2, 3, 4, 5, 6, 7]
"""

import lazy_loader as _lazy

__version__ = "0.1.0"

# The public names stand in `__init__.pyi`, for type checkers and for this line. Each is imported when it is
# first used: torch, OpenCV and compiled code take seconds to load, which the command line need not wait for.
_import, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _import(name)
    except AttributeError as error:
        if name.startswith("_") or name in __all__:
            raise
        from difflib import get_close_matches

        near = {public.lower(): public for public in __all__}
        close = get_close_matches(name.lower(), near, n=1)
        hint = f". Did you mean {near[close[0]]}?" if close else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}") from error
