"""A dataset of another library as the native one that was made of it, and made again when it was changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core.samples import MapStyleDataset
from rekindle.errors import ArgumentError, DecodeError
from rekindle.fetch.source import Stored
from rekindle.prepare.steps.step import Uniforms, Value

if TYPE_CHECKING:
    from rekindle.prepare.fused_kernel import Values
    from rekindle.prepare.native import NativeDataset
    from rekindle.prepare.native_images import Transform
    from rekindle.prepare.pipeline import Pipeline

Translate = Callable[[object], "NativeDataset"]


class TranslatedDataset:
    """What a loader reads in place of a torchvision-style dataset; the methods are those of `NativeDataset`.

    Attributes:
        version: How often the original was found to be changed: a look at this object sees that at once.
        original: The user's dataset; None in the copy that a worker gets.
        native: The native dataset that was made of it.

    """

    device_steps = None
    immutable_attributes = ("original",)  # `follow` sees what was changed in it.

    def __init__(
        self,
        original: MapStyleDataset,
        translate: Translate,
        is_same: Callable[[NativeDataset, NativeDataset], bool],
    ) -> None:
        self.version = 0
        self.original: MapStyleDataset | None = original
        self._translate, self._is_same = translate, is_same
        self.native: NativeDataset = translate(original)

    def follow(self) -> None:
        """Translate the original as it is now; ArgumentError if it has become something that cannot be."""
        try:
            native = self._translate(self.original)
        except ArgumentError as error:
            raise ArgumentError(
                "the dataset was changed after this DataLoader had translated it (native=), and can no "
                f"longer be translated. Make another DataLoader for it.\n{error}"
            ) from None
        if not self._is_same(native, self.native):
            self.native = native
            self.version += 1

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "original": None}  # A worker has no use for it.

    @property
    def transform(self) -> Transform:
        return self.native.transform

    @property
    def uniforms(self) -> int:
        return self.native.uniforms

    @property
    def releases_gil(self) -> bool:
        return self.native.releases_gil

    @property
    def draws_nothing(self) -> bool:
        return self.native.draws_nothing

    @property
    def fingerprint(self) -> str | None:
        """Changes with the samples: the key of caches on disk."""
        return getattr(self.native, "fingerprint", None)

    def __len__(self) -> int:
        """How many samples the script has now: persistent workers keep their copies, as torch's do."""
        return len(self.native if self.original is None else self.original)

    def __getitem__(self, index: int) -> tuple[Value, int]:
        return self.native[index]

    def example(self) -> tuple[Value, int] | None:
        return self.native.example()

    def sample(self, index: int, uniforms: Uniforms) -> tuple[Value, int]:
        return self.native.sample(index, uniforms)

    def samples_of(self, indices: Sequence[int], uniforms: Uniforms) -> list[tuple[Value, int]]:
        return self.native.samples_of(indices, uniforms)

    def write(self, index: int, uniforms: Uniforms, out: Values) -> int:
        return self.native.write(index, uniforms, out)

    def write_many(self, indices: Sequence[int], uniforms: Uniforms, out: Values) -> list[int]:
        return self.native.write_many(indices, uniforms, out)

    def split(self, split_point: int) -> tuple[Pipeline, Pipeline]:
        return self.native.split(split_point)

    def raw(self, index: int) -> Stored:
        return self.native.raw(index)

    def label(self, index: int) -> int:
        return self.native.label(index)

    def located(self, error: DecodeError, index: int) -> DecodeError:
        return self.native.located(error, index)

    def encoded_lengths(self) -> NDArray[np.int64] | None:
        return self.native.encoded_lengths()

    def will_need(self, indices: Sequence[int]) -> None:
        self.native.will_need(indices)

    def before_device(self) -> TranslatedDataset:
        return self
