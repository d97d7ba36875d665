"""Where a pipeline is cut between the workers and the device: `place=` made an index of a step.

bytes ──decode──▶ image ──steps[:cut]──▶ bytes of one size ──steps[cut:]──▶ tensors
                  workers, one by one                       device, whole batches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rekindle.errors import ArgumentError
from rekindle.prepare.batched.steps import has_batched_form
from rekindle.prepare.step import Step
from rekindle.prepare.tensors import Conversion

Place = str | int


def find_cut(steps: Sequence[Step], place: Place, size: tuple[int, int] | None) -> int | None:
    """The index of the first step on the device; None if all of them stay with the workers.

    `size` is what all images have before the first step, if they are alike. Workers give bytes: what comes
    after the conversion to a tensor takes the conversion with it.
    """
    if place == "cpu":
        return None
    possible = _possible_cuts(steps, size)
    if place == "device":
        if not possible:
            raise ArgumentError(
                f"place='device': no step of {_names(steps)} can run there. {_why_not(steps)}"
            )
        return min(possible)
    cut = _index(steps, place)
    converts = next((number for number, step in enumerate(steps) if isinstance(step, Conversion)), cut)
    cut = min(cut, converts)
    if cut not in possible:
        raise ArgumentError(f"place={place!r} {_reason(steps, cut)} {_advice(steps, possible)}")
    return cut


def _possible_cuts(steps: Sequence[Step], size: tuple[int, int] | None) -> list[int]:
    """Where all that follows can run on batches, and images have one size and are bytes."""
    cuts = []
    for number, step in enumerate(steps):
        if size is not None and all(map(has_batched_form, steps[number:])):
            cuts.append(number)
        if isinstance(step, Conversion):
            break
        size = step.size_after(size)
    return cuts


def _index(steps: Sequence[Step], place: Any) -> int:
    if isinstance(place, int) and not isinstance(place, bool):
        if not -len(steps) <= place < len(steps):
            raise ArgumentError(f"place is {place}, but there are {len(steps)} steps: {_names(steps)}.")
        return place % len(steps)
    found = [number for number, step in enumerate(steps) if type(step).__name__ == place]
    if len(found) == 1:
        return found[0]
    if found:
        raise ArgumentError(
            f"place={place!r} is the name of {len(found)} steps. Give the index of the one that is meant: "
            f"{' or '.join(map(str, found))}."
        )
    raise ArgumentError(
        f"place is {place!r}. Give 'cpu', 'device', or the name or index of the first step that is to run on "
        f"the device; the steps are {_names(steps)}."
    )


def _reason(steps: Sequence[Step], cut: int) -> str:
    unknown = [step for step in steps[cut:] if not has_batched_form(step)]
    if unknown:
        return f"leaves {type(unknown[-1]).__name__} to the device, where it cannot run on whole batches."
    return (
        f"leaves {type(steps[cut]).__name__} to the device, but images differ in size before it, "
        "and a batch has one size."
    )


def _why_not(steps: Sequence[Step]) -> str:
    if steps and not has_batched_form(steps[-1]):
        return f"{type(steps[-1]).__name__}, the last, cannot run on whole batches."
    return "Images differ in size: put a step that gives them one size, such as RandomResizedCrop, first."


def _advice(steps: Sequence[Step], possible: list[int]) -> str:
    if not possible:
        return "No later cut works either: leave place out, or place='cpu'."
    first = possible[0]
    return f"The first cut that works is place={first} ({type(steps[first]).__name__})."


def _names(steps: Sequence[Step]) -> str:
    return "[" + ", ".join(f"{n}: {type(step).__name__}" for n, step in enumerate(steps)) + "]"
