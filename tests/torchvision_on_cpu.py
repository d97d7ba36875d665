"""Imports torchvision, also beside a CPU-only torch, whose `nms` and `qnms` it does not find.

Declaring the two is enough for the transforms, which use neither. Use it in place of `import torchvision`.
"""

from __future__ import annotations

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    _ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    torch.library.define("torchvision::nms", _ARGUMENTS)
    torch.library.define("torchvision::qnms", _ARGUMENTS)
    import torchvision

from torchvision import transforms
from torchvision.transforms import functional, v2

__all__ = ["functional", "torchvision", "transforms", "v2"]
