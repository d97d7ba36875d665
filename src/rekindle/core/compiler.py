"""numba, which compiles our kernels: loaded from here, so that the user is told if that takes long."""

from rekindle.core.patience import PATIENCE

with PATIENCE.during("loading numba, which runs compiled kernels"):
    import numba
    from numba.core import event
    from numba.core.typing.templates import Signature

__all__ = ["Signature", "event", "numba"]
