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

from rekindle.prepare.auto_augment import AutoAugment, AutoAugmentPolicy
from rekindle.prepare.blur_and_sharpness import GaussianBlur, RandomAdjustSharpness, Sharpness
from rekindle.prepare.colour import ColorJitter, RandomGrayscale
from rekindle.prepare.compose import Compose, Lambda, RandomApply
from rekindle.prepare.crop import CenterCrop, Pad, RandomCrop, RandomResizedCrop
from rekindle.prepare.erasing import RandomErasing
from rekindle.prepare.flip import RandomHorizontalFlip, RandomVerticalFlip
from rekindle.prepare.from_torchvision import from_torchvision
from rekindle.prepare.geometry import RandomAffine, RandomRotation
from rekindle.prepare.mixing import CutMix, MixUp, cutmix, mixup
from rekindle.prepare.parameters import InterpolationMode
from rekindle.prepare.point_operations import (
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
from rekindle.prepare.policies import RandAugment, TrivialAugmentWide
from rekindle.prepare.resize import Resize
from rekindle.prepare.step import Step
from rekindle.prepare.tensors import ConvertImageDtype, Normalize, PILToTensor, ToTensor

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
