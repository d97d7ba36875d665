"""Whether two batches are the same, down to types, dtypes and bits."""

import hashlib
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves


def same(ours: Any, theirs: Any) -> bool:
    """Equal in type, structure, dtype, shape and value; NaN equals NaN."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return False
        return _bits(ours) == _bits(theirs)
    if isinstance(ours, np.ndarray):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return False
        if ours.dtype.hasobject:
            return same(ours.tolist(), theirs.tolist())
        return ours.tobytes() == theirs.tobytes()
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs) or (ours != ours and theirs != theirs)


def _bits(tensor: torch.Tensor) -> bytes:
    # A clone, because even a tensor of one element that calls itself contiguous may have strides.
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def digest(batches: Any) -> str:
    """SHA-256 over types, shapes and bytes of everything in these batches, in order."""
    sha = hashlib.sha256()
    for leaf in tree_leaves(batches):
        array = np.asarray(leaf)
        sha.update(f"{type(leaf).__name__} {array.dtype} {array.shape};".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
