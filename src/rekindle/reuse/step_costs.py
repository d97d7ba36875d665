"""What the steps cost, as a table: where to split is decided without a clock, alike in every run and rank.

Nanoseconds for a pixel of the result, measured once on images of 224 × 224 on one core of a server. Only
their ratios count. A step of another library costs what ours of the same name does.
"""

from __future__ import annotations

from rekindle.prepare.steps.compose import RandomApply, StepContainer
from rekindle.prepare.steps.image_step import ChanceStep
from rekindle.prepare.steps.step import Step

DECODING = 4.0  # a pixel of the image
CACHED_BYTE = 0.3  # to be read, a byte
UNKNOWN = 10.0  # a step that is in no table
_BLUR_ROW, _HUE = 0.9, 5.0
_NANOSECONDS = {
    "AutoAugment": 3.5,
    "AutoContrast": 4.1,
    "CenterCrop": 0.1,
    "ColorJitter": 3.5,
    "ConvertImageDtype": 1.5,
    "Equalize": 5.1,
    "Invert": 0.2,
    "Normalize": 1.1,
    "PILToTensor": 1.2,
    "Pad": 0.4,
    "Posterize": 0.2,
    "RandAugment": 1.5,
    "RandAugmentLayer": 1.5,
    "RandomAdjustSharpness": 2.3,
    "RandomAffine": 2.6,
    "RandomAutocontrast": 4.1,
    "RandomCrop": 0.1,
    "RandomEqualize": 5.1,
    "RandomErasing": 1.2,
    "RandomGrayscale": 0.6,
    "RandomHorizontalFlip": 0.3,
    "RandomInvert": 0.2,
    "RandomPosterize": 0.2,
    "RandomResizedCrop": 1.8,
    "RandomRotation": 2.6,
    "RandomSolarize": 2.2,
    "RandomVerticalFlip": 0.2,
    "Resize": 1.7,
    "Sharpness": 2.3,
    "Solarize": 2.2,
    "ToTensor": 2.7,
    "TrivialAugmentWide": 2.1,
}


def nanoseconds(step: Step | None) -> float | None:
    """What one of our steps costs on average for a pixel of its result; None if no table has it."""
    if step is None:
        return None
    if isinstance(step, StepContainer):
        parts = [nanoseconds(part) for part in step.transforms]
        known = [part for part in parts if part is not None]
        p = step.p if isinstance(step, RandomApply) else 1.0
        return p * sum(known) if len(known) == len(parts) else None
    # Not at the top: they need OpenCV, and who asks about no step may not.
    from rekindle.prepare.steps.blur_and_sharpness import GaussianBlur
    from rekindle.prepare.steps.colour import ColorJitter

    if isinstance(step, GaussianBlur):
        return _BLUR_ROW * max(step.kernel_size)
    cost = _NANOSECONDS.get(type(step).__name__)
    if cost is None:
        return None
    if isinstance(step, ColorJitter) and step.hue is not None:
        return cost + _HUE
    return step.p * cost if isinstance(step, ChanceStep) else cost
