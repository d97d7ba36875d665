"""Resize: the whole image at another size."""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.errors import ArgumentError
from rekindle.prepare.steps import parameters
from rekindle.prepare.steps.antialiased_resize import RESIZE_MODES, compile_resize
from rekindle.prepare.steps.crop_window import Window, WindowStep
from rekindle.prepare.steps.parameters import InterpolationArgument
from rekindle.prepare.steps.step import Uniforms


class Resize(WindowStep):
    """Resize to a height and width or, given one number, so that the shorter edge has that length.

    Always antialiased, as torchvision is on Pillow images; `antialias` is accepted and has no effect.

    >>> import numpy as np
    >>> Resize(256)(np.zeros((500, 1000, 3), dtype=np.uint8)).shape
    (256, 512, 3)
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: InterpolationArgument = parameters.InterpolationMode.BILINEAR,
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        height_and_width = parameters.size_pair("Resize", size)
        exact = isinstance(size, Sequence) and len(size) == 2
        if max_size is not None and exact:
            raise ArgumentError(
                f"Resize: max_size is {max_size!r} and size {size!r} fixes both edges. "
                "Give one number as size."
            )
        if (
            max_size is not None
            and parameters.positive_integer("Resize", "max_size", max_size) <= height_and_width[0]
        ):
            raise ArgumentError(
                f"Resize: max_size is {max_size!r}, but the shorter edge is to be {height_and_width[0]}. "
                "Give a larger max_size."
            )
        self.size = height_and_width if exact else None
        self.shorter_edge = None if exact else height_and_width[0]
        self.max_size = max_size
        self.interpolation = parameters.interpolation_mode("Resize", interpolation, RESIZE_MODES)

    def compile_kernels(self) -> None:
        compile_resize(self.interpolation)

    def window(self, height: int, width: int, uniforms: Uniforms | None = None) -> Window:
        return Window(0, 0, height, width, *(self.size or self._size_by_edge(height, width)))

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size or (None if size is None else self.window(*size).size)

    def _size_by_edge(self, height: int, width: int) -> tuple[int, int]:
        assert self.shorter_edge is not None
        short, long = self.shorter_edge, int(self.shorter_edge * max(height, width) / min(height, width))
        if self.max_size is not None and long > self.max_size:
            short, long = int(self.max_size * short / long), self.max_size
        return (long, max(short, 1)) if width <= height else (max(short, 1), long)

    def __repr__(self) -> str:
        size = self.size or self.shorter_edge
        return f"Resize(size={size}, interpolation={self.interpolation!r}, max_size={self.max_size})"
