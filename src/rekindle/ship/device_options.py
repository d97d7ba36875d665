"""Where a loader's batches end up, and how they are transformed there: `device` and `batch_transform`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rekindle.core.samples import Batch
from rekindle.errors import ArgumentError
from rekindle.prepare.native import as_native, device_steps
from rekindle.ship import ToDevice, copy_stream_to

if TYPE_CHECKING:
    from rekindle.prepare.device.device_steps import DeviceSteps
    from rekindle.ship.batch_transforms import BatchStep


@dataclass(frozen=True)
class Placement:
    """The device (None: batches stay on the CPU), a dataset's steps on it, and steps on whole batches."""

    device: torch.device | None
    on_device: DeviceSteps | None
    on_batches: Sequence[BatchStep]
    reuses: bool

    @classmethod
    def of(
        cls,
        dataset: object,
        device: str | int | torch.device | None,
        batch_transform: object,
        *,
        batched: bool,
        by_rows: bool,
        reuses: bool,
    ) -> Placement:
        """The placement that the loader's arguments ask for; ArgumentError if they cannot work together.

        With `batched`, the loader makes batches of samples; with `by_rows`, it also collates them itself, of
        samples as the dataset returns them.
        """
        target = None if device is None else _device(device)
        on_device = device_steps(dataset)
        if on_device is not None and target is None:
            first = type(on_device.steps[0]).__name__ if on_device.steps else "the last steps"
            raise ArgumentError(
                f"the dataset leaves {first} and all after it to the device, but the loader has device=None."
                " Give the loader a device=, such as 'cuda' or 'cpu', or open the dataset with place='cpu'."
            )
        if on_device is not None and not by_rows:
            raise ArgumentError(
                "the dataset leaves steps to the device, which take whole batches. That does not go with a "
                "collate_fn, a final_transform or batch_size=None, because only your code knows what a batch "
                "is. Leave those out, or open the dataset with place='cpu'."
            )
        if batch_transform is None:
            return cls(target, on_device, (), reuses)
        if not batched and as_native(dataset) is not None:
            raise ArgumentError(
                f"batch_transform={batch_transform!r} takes whole batches, but with batch_size=None the "
                "loader yields single images. Give a batch_size=, or leave out batch_transform."
            )
        # Here and not above: OpenCV and compiled code take a second to load.
        from rekindle.ship.batch_transforms import steps_on_batches

        return cls(target, on_device, steps_on_batches(batch_transform), reuses)

    def to_device(self, seed: int, pin: Callable[[Batch], Batch] | None) -> ToDevice | None:
        """What copies batches to the device and transforms them; None if neither is asked for."""
        if self.device is None and not self.on_batches:
            return None
        device = self.device or torch.device("cpu")
        transform = None
        if self.on_device is not None or self.on_batches:
            from rekindle.ship.batch_transforms import BatchTransforms

            transform = BatchTransforms(seed, self.on_device, self.on_batches)
        return ToDevice(copy_stream_to(device), device, transform, pin, keep_memory=self.reuses)


def _device(device: str | int | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device is {device!r}, which torch does not know: {error}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            f"device is {device!r}, but torch finds no CUDA device. Give device='cpu', or None."
        )
    return found
