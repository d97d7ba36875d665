"""Which class each row of logits should have been, as the targets that cross_entropy takes say it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from rekindle.errors import ArgumentError

OUT_OF_RANGE = (
    "Report the samples that have a class only (cross_entropy ignores targets of -100): "
    "feedback(logits=logits[mask], targets=targets[mask], ids=loader.batch.ids[mask]). "
    "For a model without classes give losses=."
)
_BINARY = (
    "For a model with one output (BCE) give losses=, one per sample: "
    "binary_cross_entropy_with_logits(…, reduction='none')."
)


class Targets(NamedTuple):
    """Logits of shape (samples, classes), and a class for each row of them, on their device."""

    logits: torch.Tensor
    classes: torch.Tensor
    are_known: bool  # to be classes of these logits; on a device, nobody has looked


def target_classes(logits: object, targets: object) -> Targets:
    """The classes that `targets` stand for; ArgumentError if they can be none of these logits'.

    They may be integers, of shape (samples,) or (samples, 1), or shares of all classes, as mixed labels are,
    which are floating-point numbers of the logits' shape: the class with the largest share.
    """
    if not isinstance(logits, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise ArgumentError(
            "feedback: logits of shape (samples, classes) need targets, one per sample, but got "
            f"{_shown(logits)} and {_shown(targets)}. For other outputs give losses=."
        )
    if logits.dim() == 1 or (logits.dim() == 2 and logits.shape[1] == 1):
        raise ArgumentError(
            f"feedback: a probability needs two classes or more, but got {_both(logits, targets)}. {_BINARY}"
        )
    if logits.dim() != 2:
        raise ArgumentError(
            f"feedback: logits must have the shape (samples, classes), but got {_both(logits, targets)}. "
            "For other outputs give losses=."
        )
    if targets.is_floating_point():
        if targets.shape != logits.shape:
            raise ArgumentError(
                "feedback: targets that are floating-point numbers are shares of the classes, and have the "
                f"logits' shape, but got {_both(logits, targets)}. Give classes as integers: targets.long()."
            )
        return Targets(logits, _on_device_of(logits, targets.argmax(1)), are_known=True)
    if targets.is_complex() or targets.shape not in ((len(logits),), (len(logits), 1)):
        raise ArgumentError(
            "feedback: targets that are integers are one class per sample, but got "
            f"{_both(logits, targets)}. Give those, or shares of the classes (targets.float() of a "
            "one-hot encoding), or losses=."
        )
    classes = targets.reshape(-1).to(torch.int64)
    are_known = _is_at_hand(classes)
    if are_known and len(classes):
        lowest, highest = (int(end) for end in torch.aminmax(classes))
        if lowest < 0 or highest >= logits.shape[1]:
            raise ArgumentError(
                f"feedback: targets must be from 0 to {logits.shape[1] - 1}, as the logits have "
                f"{logits.shape[1]} classes, but got {lowest} to {highest}. {OUT_OF_RANGE}"
            )
    return Targets(logits, _on_device_of(logits, classes), are_known=are_known)


def _is_at_hand(values: torch.Tensor) -> bool:
    """Whether looking at these values waits for no device."""
    return values.device.type == "cpu"


def _on_device_of(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return classes.to(device=logits.device, non_blocking=True)


def _both(logits: torch.Tensor, targets: torch.Tensor) -> str:
    return f"logits {_shown(logits)} and targets {_shown(targets)}"


def _shown(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"of shape {tuple(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
