"""Where a pipeline is split between workers and device: `place=` as the index of a step.

bytes ──decode──▶ image ──steps[:split]──▶ bytes of one size ──steps[split:]──▶ tensors
                  workers, one by one                         device, whole batches
"""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.errors import ArgumentError
from rekindle.prepare.device.steps import has_batched_form
from rekindle.prepare.steps.step import Step
from rekindle.prepare.steps.to_tensor import Conversion


def find_device_split(steps: Sequence[Step], place: str | int, size: tuple[int, int] | None) -> int | None:
    """The index of the first step on the device; None if all steps run in the workers.

    `size` is the size of all images before the first step, if they have one. Workers produce bytes: a step
    after the conversion to a tensor takes the conversion to the device with it.
    """
    if place == "cpu":
        return None
    possible = _possible_splits(steps, size)
    if place == "device":
        if not possible:
            raise ArgumentError(
                f"place='device': no step of {_names(steps)} can run there. {_why_not(steps)}"
            )
        return min(possible)
    split = _index(steps, place)
    conversion = next((number for number, step in enumerate(steps) if isinstance(step, Conversion)), split)
    split = min(split, conversion)
    if split not in possible:
        raise ArgumentError(f"place={place!r} {_reason(steps, split)} {_advice(steps, possible)}")
    return split


def _possible_splits(steps: Sequence[Step], size: tuple[int, int] | None) -> list[int]:
    """Indices from which all steps can run on batches, and before which images are bytes of one size."""
    splits = []
    for number, step in enumerate(steps):
        if size is not None and all(map(has_batched_form, steps[number:])):
            splits.append(number)
        if isinstance(step, Conversion):
            break
        size = step.size_after(size)
    return splits


def _index(steps: Sequence[Step], place: object) -> int:
    if isinstance(place, int) and not isinstance(place, bool):
        if not -len(steps) <= place < len(steps):
            raise ArgumentError(f"place is {place}, but there are {len(steps)} steps: {_names(steps)}.")
        return place % len(steps)
    found = [number for number, step in enumerate(steps) if type(step).__name__ == place]
    if len(found) == 1:
        return found[0]
    if found:
        raise ArgumentError(
            f"place={place!r} is the name of {len(found)} steps. Give the index of one of them: "
            f"{' or '.join(map(str, found))}."
        )
    raise ArgumentError(
        f"place is {place!r}. Give 'cpu', 'device', or the name or index of the first step to run on the "
        f"device; the steps are {_names(steps)}."
    )


def _reason(steps: Sequence[Step], split: int) -> str:
    unknown = [step for step in steps[split:] if not has_batched_form(step)]
    if unknown:
        return f"leaves {type(unknown[-1]).__name__} to the device, where it cannot run on whole batches."
    return (
        f"leaves {type(steps[split]).__name__} to the device, but images differ in size before it, "
        "and a batch has one size."
    )


def _why_not(steps: Sequence[Step]) -> str:
    if steps and not has_batched_form(steps[-1]):
        return f"{type(steps[-1]).__name__}, the last, cannot run on whole batches."
    return "Images differ in size: put a step that gives them one size, such as RandomResizedCrop, first."


def _advice(steps: Sequence[Step], possible: list[int]) -> str:
    if not possible:
        return "No later device split works either: omit place, or give place='cpu'."
    first = possible[0]
    return f"The first device split that works is place={first} ({type(steps[first]).__name__})."


def _names(steps: Sequence[Step]) -> str:
    return "[" + ", ".join(f"{n}: {type(step).__name__}" for n, step in enumerate(steps)) + "]"
