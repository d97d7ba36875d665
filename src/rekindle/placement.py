"""Where a loader's batches end up, and what is done to them there: `device` and `batch_transform`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rekindle.errors import ArgumentError
from rekindle.run.native import device_steps, for_workers
from rekindle.ship import ToDevice, lane_to

if TYPE_CHECKING:
    from rekindle.prepare.batched.suffix import Suffix


@dataclass(frozen=True)
class Placement:
    """The device (None: batches stay on the CPU), a data set's steps on it, and steps on whole batches."""

    device: torch.device | None
    suffix: Suffix | None
    on_batches: Sequence[Any]
    reuses: bool

    @classmethod
    def of(cls, dataset: Any, device: Any, batch_transform: Any, *, by_rows: bool, reuses: bool) -> Placement:
        """What the loader's arguments come to; ArgumentError if they cannot work together.

        `by_rows` says that the loader itself puts batches together, of samples as the data set gives them.
        """
        target = None if device is None else _device(device)
        suffix = device_steps(dataset)
        if suffix is not None and target is None:
            first = type(suffix.steps[0]).__name__ if suffix.steps else "the last steps"
            raise ArgumentError(
                f"the data set leaves {first} and all after it to the device, but the loader has device=None."
                " Give the loader a device=, such as 'cuda' or 'cpu', or open the data set with place='cpu'."
            )
        if suffix is not None and not by_rows:
            raise ArgumentError(
                "the data set leaves steps to the device, which take whole batches. That does not go with a "
                "collate_fn, a final_transform or batch_size=None, because only your code knows what a batch "
                "is. Leave those out, or open the data set with place='cpu'."
            )
        if batch_transform is None:
            return cls(target, suffix, (), reuses)
        # Here and not above: OpenCV and compiled code take a second to load.
        from rekindle.ship.finish import steps_on_batches

        return cls(target, suffix, steps_on_batches(batch_transform), reuses)

    def loaded_from(self, dataset: Any) -> Any:
        """What workers load samples from."""
        return for_workers(dataset, without_device_steps=True)

    def to_device(self, seed: int, pin: Callable[[Any], Any] | None) -> ToDevice | None:
        """What takes batches there; None if nothing is to be done to them."""
        if self.device is None and not self.on_batches:
            return None
        device = self.device or torch.device("cpu")
        finish = None
        if self.suffix is not None or self.on_batches:
            from rekindle.ship.finish import Finish

            finish = Finish(seed, self.suffix, self.on_batches)
        return ToDevice(lane_to(device), device, finish, pin, keep_memory=self.reuses)


def _device(device: Any) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device is {device!r}, which torch does not know: {error}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            f"device is {device!r}, but torch finds no CUDA device. Give device='cpu', or None."
        )
    return found
