"""torchvision without torch's compiler, which its import would bring: a tenth of the time and of the memory.

Nothing is compiled here, and every fork of a process copies the entries of all memory that it has. Use it in
place of `import torchvision`, before anything else imports torchvision.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch  # noqa: F401 - what the stand-in below is a part of

_COMPILER = "torch._dynamo"


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Have torchvision find what it asks the compiler for; who asks later gets the compiler."""
    if _COMPILER in sys.modules:
        yield
        return
    compiler: Any = ModuleType(_COMPILER)
    compiler.__path__ = []
    compiler.utils = ModuleType(f"{_COMPILER}.utils")
    compiler.utils.is_compile_supported = lambda device: False
    compiler.disable = _unchanged
    stand_ins = {_COMPILER: compiler, f"{_COMPILER}.utils": compiler.utils}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            assert sys.modules.pop(name) is module


def _unchanged(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
    """What `torch.compiler.disable` makes of a function where nothing is compiled."""
    return function


with _no_compiler():
    from benchmarks.torchvision_on_cpu import functional, torchvision, transforms, v2

__all__ = ["functional", "torchvision", "transforms", "v2"]
