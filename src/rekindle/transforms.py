"""The image steps, named and parameterised as torchvision's transforms are.

>>> import numpy as np
>>> from rekindle import transforms
>>> prepare = transforms.Compose([
...     transforms.RandomResizedCrop(224),
...     transforms.RandomHorizontalFlip(),
...     transforms.ToTensor(),
... ])
>>> prepare(np.zeros((300, 400, 3), dtype=np.uint8)).shape
torch.Size([3, 224, 224])
"""

import difflib
from typing import TYPE_CHECKING, NoReturn

from rekindle.prepare.steps.auto_augment import AutoAugment, AutoAugmentPolicy
from rekindle.prepare.steps.blur_and_sharpness import GaussianBlur, RandomAdjustSharpness, Sharpness
from rekindle.prepare.steps.colour import ColorJitter, RandomGrayscale
from rekindle.prepare.steps.compose import Compose, Lambda, RandomApply
from rekindle.prepare.steps.crop import CenterCrop, Pad, RandomCrop, RandomResizedCrop
from rekindle.prepare.steps.erasing import RandomErasing
from rekindle.prepare.steps.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.steps.from_torchvision import from_torchvision
from rekindle.prepare.steps.geometry import RandomAffine, RandomRotation
from rekindle.prepare.steps.mixup_cutmix import CutMix, MixUp, cutmix, mixup
from rekindle.prepare.steps.parameters import InterpolationMode
from rekindle.prepare.steps.point_operations import (
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    Solarize,
)
from rekindle.prepare.steps.rand_augment import RandAugment, TrivialAugmentWide
from rekindle.prepare.steps.resize import Resize
from rekindle.prepare.steps.step import Step
from rekindle.prepare.steps.to_tensor import (
    ConvertImageDtype,
    FirstChannel,
    Normalize,
    PILToTensor,
    ToTensor,
)

__all__ = [
    "AutoAugment",
    "AutoAugmentPolicy",
    "AutoContrast",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "CutMix",
    "Equalize",
    "FirstChannel",
    "GaussianBlur",
    "InterpolationMode",
    "Invert",
    "Lambda",
    "MixUp",
    "Normalize",
    "PILToTensor",
    "Pad",
    "Posterize",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "Sharpness",
    "Solarize",
    "Step",
    "ToTensor",
    "TrivialAugmentWide",
    "cutmix",
    "from_torchvision",
    "mixup",
]

# torchvision's transforms of images, v1 and v2, that have no step here; and what does the same, if anything.
_TORCHVISION_ONLY = {
    **dict.fromkeys(
        (
            "AugMix", "ElasticTransform", "FiveCrop", "GaussianNoise", "JPEG", "LinearTransformation",
            "RandomChannelPermutation", "RandomChoice", "RandomIoUCrop", "RandomOrder", "RandomPerspective",
            "RandomPhotometricDistort", "RandomResize", "RandomShortestSize", "RandomZoomOut", "ScaleJitter",
            "TenCrop", "ToPureTensor", "Transform",
        ),
        "",
    ),
    "Grayscale": "RandomGrayscale(p=1)",
    "RGB": "nothing: images are RGB",
    "Identity": "nothing",
    "ToDtype": "ConvertImageDtype(dtype)",
    "ToImage": "PILToTensor()",
    "ToPILImage": "Lambda(PIL.Image.fromarray)",
}  # fmt: skip

if not TYPE_CHECKING:  # For type checkers, what is not above does not exist.

    def __getattr__(name: str) -> NoReturn:
        """An AttributeError that says what to do in place of a transform that only torchvision has."""
        if name not in _TORCHVISION_ONLY:
            near = difflib.get_close_matches(name, __all__, n=1)
            hint = f". Did you mean {near[0]}?" if near and not name.startswith("_") else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        instead = _TORCHVISION_ONLY[name] or "Lambda(function), with a function of an array"
        raise AttributeError(
            f"there is no {name} in rekindle.transforms. Use {instead}; or torchvision's {name}, in a "
            "Compose of torchvision's as transform=: all of it is then done by torchvision, on Pillow "
            "images, and no step is native."
        )
