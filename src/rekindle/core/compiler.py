"""numba, which compiles our kernels: loaded from here, so that the user is told if that takes long."""

from collections.abc import Callable
from typing import TypeVar

from rekindle.core.compiled_code import NO_ALLOCATION, check_compiled_code
from rekindle.core.patience import PATIENCE

with PATIENCE.during("loading numba, which runs compiled kernels"):
    import numba
    from numba.core import event
    from numba.core.typing.templates import Signature

__all__ = ["Signature", "event", "numba", "part_of_kernels"]

Function = TypeVar("Function", bound=Callable[..., object])

check_compiled_code()


def part_of_kernels(**options: object) -> Callable[[Function], Function]:
    """A decorator of functions that kernels call: they check no index and allocate nothing."""
    return numba.njit(nogil=True, boundscheck=False, **NO_ALLOCATION, **options)  # type: ignore[call-overload,no-any-return]
