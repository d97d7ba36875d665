"""Decoding alone: a JPEG's box, or all of it.

Question: What does a photograph cost to decode with our kernels, and with libjpeg-turbo?

Method: photographs in memory, one process, one thread. "box": the boxes of RandomResizedCrop(224), of which
simplejpeg decodes all rows down to the last one of the box, as the loader has it do for JPEGs that are not
plain. "whole": all pixels. CPU time of the process, over all photographs; both write to memory that was used
before.

    python -m benchmarks jpeg_boxes --data images.tar

Reading: microseconds a photograph, less is better; the title says how many of them our kernels decode (the
others are not counted).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.alternate import alternate
from benchmarks.answer import Comparison, compare
from benchmarks.photographs import described, photographs

Box = tuple[int, int, int, int]


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Microseconds for a box and for a whole photograph, with each decoder."""
    import rekindle as rk
    from rekindle.prepare.decode.jpeg import decode_jpeg, read_frame
    from rekindle.prepare.decode.jpeg_box import compile_box, decode_jpeg_box

    compile_box()
    images = photographs(data)
    encoded = [path.read_bytes() for path in images]
    every = [(read_frame(one), one) for one in encoded]
    plain = [
        (frame, one)
        for frame, one in every
        if decode_jpeg_box(frame, one, (0, 0, 1, 1), scratch=True) is not None
    ]
    crop, rng = rk.transforms.RandomResizedCrop(224), np.random.default_rng(0)
    boxes = [crop.window(frame.height, frame.width, rng.random(crop.uniforms)).box for frame, _ in plain]
    whole = [(0, 0, frame.height, frame.width) for frame, _ in plain]

    def by_kernels(wanted: list[Box]) -> Callable[[], float]:
        def seconds() -> float:
            start = time.process_time()
            for (frame, one), box in zip(plain, wanted, strict=True):
                decode_jpeg_box(frame, one, box, scratch=True)
            return 1e6 * (time.process_time() - start) / len(plain)

        return seconds

    def by_simplejpeg(wanted: list[Box]) -> Callable[[], float]:
        def seconds() -> float:
            start = time.process_time()
            for (frame, one), (top, _, height, _) in zip(plain, wanted, strict=True):
                decode_jpeg(frame, one, 1, top + height, scratch=True)
            return 1e6 * (time.process_time() - start) / len(plain)

        return seconds

    title = f"{described(data, images)}, of which {len(plain)} are decoded by the kernels"
    return [
        compare(
            f"{name}: {title}",
            "µs a photograph",
            alternate({"simplejpeg": by_simplejpeg(wanted), "rekindle": by_kernels(wanted)}, rounds),
            {},
        )
        for name, wanted in (("box", boxes), ("whole", whole))
    ]
