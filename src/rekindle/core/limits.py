"""What one sample may cost: the rule in one place (see docs/security.md).

A file decides how large the image in it is, and a step how large its result is. Whatever is read
or allocated for one sample is compared with these limits first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rekindle.core.given_numbers import integer_of, number_of
from rekindle.errors import ArgumentError, DecodeError


@dataclass(frozen=True)
class Limits:
    """What one sample may cost. A sample that would cost more raises an error before it does.

    Args:
        encoded_bytes: Bytes of a sample as it is stored: a file, an object, a record.
        array_bytes: Bytes that are decoded for an array that is put together from compressed or missing parts
            (HDF5's chunks, each of which is decoded as a whole).
        pixels: Pixels (height × width) of an image, as decoded and after every step; by default as many as
            Pillow decodes without a warning.
        seconds: Seconds of a processor that a format's own library may take to inspect a file: less for files
            of less than so many megabytes.
        classes: Classes that have numbers and no names, if labels are integers: from 0 to the largest.

    """

    encoded_bytes: int = 1 << 30
    array_bytes: int = 1 << 28
    pixels: int = 89_478_485
    seconds: float = 600.0
    classes: int = 1_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = number_of(value) if field.name == "seconds" else integer_of(value)
            if number is None or not number > 0:
                raise ArgumentError(f"Limits: {field.name} is {value!r}. Give a positive number.")
            object.__setattr__(self, field.name, number)

    def check_encoded(self, nbytes: int) -> None:
        """DecodeError if a stored sample has more bytes than are allowed."""
        if nbytes > self.encoded_bytes:
            raise self._exceeded("encoded_bytes", nbytes, f"{nbytes:,} bytes of one sample")

    def check_array(self, nbytes: int) -> None:
        """DecodeError if an array has more bytes than are allowed."""
        if nbytes > self.array_bytes:
            raise self._exceeded("array_bytes", nbytes, f"an array of {nbytes:,} bytes")

    def check_image(self, height: int, width: int, why: str = "") -> None:
        """DecodeError if an image has more pixels than are allowed; `why` it has them, as "after Resize"."""
        if height * width > self.pixels:
            raise self._exceeded("pixels", height * width, f"{width} × {height} pixels{why and ' '}{why}")

    def _exceeded(self, name: str, needed: int, what: str) -> DecodeError:
        return DecodeError(
            f"{what} exceed the limit of {getattr(self, name):,}: the file may be made to exhaust memory. If "
            f"you trust it, open the dataset with limits=rekindle.Limits({name}={needed})"
        )


DEFAULT_LIMITS = Limits()
