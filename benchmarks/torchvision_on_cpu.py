"""Imports torchvision beside a CPU-only torch too; for benchmarks and tests.

torchvision's wheel from PyPI is built for a CUDA torch. Beside a CPU-only one its compiled operators do not
load, and the import fails where it describes two of them, `nms` and `qnms`, which then do not exist
("operator torchvision::nms does not exist"). Declaring the two is enough for torchvision's transforms, which
use neither. Where torchvision imports as it is, nothing is done.

Use it in place of `import torchvision`, before anything else imports torchvision:

    from benchmarks.torchvision_on_cpu import torchvision
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
