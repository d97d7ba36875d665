"""Where torchvision's and timm's datasets have their images and labels: files in a list, or one array.

A dataset is known by whose `__getitem__` it has, not by its name or its attributes: a subclass that overrides
it gives other samples, and is refused. Neither library is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.folder import IMAGE_EXTENSIONS
from rekindle.prepare.steps.unmodified import module_of

Dataset: TypeAlias = Any  # of a library without types
Labels: TypeAlias = Any  # a list, an array or a tensor, of what is not known to be integers


class ForeignImages(NamedTuple):
    """What a dataset consists of: `paths`, or `pixels` (samples × height × width, × 3 unless grey)."""

    transform: object
    labels: NDArray[np.int64]
    paths: Sequence[str | os.PathLike[str]] | None = None
    pixels: NDArray[np.uint8] | None = None

    @property
    def channels(self) -> int:
        """1 if images are grey."""
        return 1 if self.pixels is not None and self.pixels.ndim == 3 else 3


class _Files(NamedTuple):
    """A list of (path, label), or two lists; `opens` is the attribute with the function that opens a file."""

    pairs: str = ""
    paths: str = ""
    labels: str = ""
    opens: str = "loader"
    joint: bool = False  # whether `__getitem__` calls `transforms`, which was made of both transforms


class _Pixels(NamedTuple):
    """One array of all images, by the order of its axes, and labels."""

    images: str
    labels: str
    axes: str
    as_integers: bool = True  # whether `__getitem__` calls `int` on a label


_TWO_LISTS = _Files(paths="_image_files", labels="_labels")
_PAIRS = _Files(pairs="_samples")
_PLACES: dict[str, _Files | _Pixels] = {
    "torchvision.datasets.folder.DatasetFolder": _Files(pairs="samples"),
    "torchvision.datasets.food101.Food101": _TWO_LISTS,
    "torchvision.datasets.flowers102.Flowers102": _TWO_LISTS,
    "torchvision.datasets.fgvc_aircraft.FGVCAircraft": _TWO_LISTS,
    "torchvision.datasets.dtd.DTD": _TWO_LISTS,
    "torchvision.datasets.sun397.SUN397": _TWO_LISTS,
    "torchvision.datasets.gtsrb.GTSRB": _Files(pairs="_samples", opens=""),
    "torchvision.datasets.rendered_sst2.RenderedSST2": _PAIRS,
    "torchvision.datasets.imagenette.Imagenette": _PAIRS,
    "torchvision.datasets.stanford_cars.StanfordCars": _PAIRS,
    "torchvision.datasets.places365.Places365": _Files(pairs="imgs", joint=True),
    "torchvision.datasets.lfw.LFWPeople": _Files(paths="data", labels="targets", opens="_loader"),
    "torchvision.datasets.cifar.CIFAR10": _Pixels("data", "targets", "NHWC", as_integers=False),
    "torchvision.datasets.mnist.MNIST": _Pixels("data", "targets", "NHW"),
    "torchvision.datasets.mnist.QMNIST": _Pixels("data", "targets", "NHW"),
    "torchvision.datasets.usps.USPS": _Pixels("data", "targets", "NHW"),
    "torchvision.datasets.semeion.SEMEION": _Pixels("data", "labels", "NHW"),
    "torchvision.datasets.stl10.STL10": _Pixels("data", "labels", "NCHW"),
    "torchvision.datasets.svhn.SVHN": _Pixels("data", "labels", "NCHW"),
}
_NOBODY = ""  # gives samples of what has no `__getitem__`
_TIMM = "timm.data.dataset.ImageDataset"
_TIMM_FOLDER = "timm.data.readers.reader_image_folder.ReaderImageFolder"
_LOADERS = ("default_loader", "pil_loader", "_LFW._loader")
_EXTENSIONS = (*IMAGE_EXTENSIONS, ".gif")  # what Pillow opens for us, and torchvision for a user


def look_into(dataset: Dataset) -> tuple[ForeignImages | None, list[str]]:
    """What a dataset consists of as it is now, and all reasons why it cannot be taken from there."""
    whose = _giver_of_samples(dataset)
    problems: list[str] = []
    if getattr(dataset, "__getitems__", None) is not None:
        problems.append("its __getitems__ loads a whole batch at once")
    if whose == _TIMM:
        return _look_into_timm(dataset, problems)
    place = _PLACES.get(whose)
    if place is None:
        kind = type(dataset)
        inherited = whose not in (f"{kind.__module__}.{kind.__qualname__}", _NOBODY)
        which = f"its __getitem__ is that of {whose}," if inherited else "it is"
        return None, [
            f"{which} none of the datasets of "
            "torchvision and timm that are translated (rk.open(folder) reads images natively)"
        ]
    transform, target_transform = dataset.transform, dataset.target_transform
    joint = getattr(dataset, "transforms", None)
    if joint is not None and _name(type(joint)) != "torchvision.datasets.vision.StandardTransform":
        problems.append(f"transforms={joint!r} works on image and label together")
    elif isinstance(place, _Files) and place.joint:
        transform, target_transform = (
            getattr(joint, "transform", None),
            getattr(joint, "target_transform", None),
        )
    problems += _of_target_transform(target_transform)
    try:
        found = _files(dataset, place) if isinstance(place, _Files) else _pixels(dataset, place)
        if len(found.labels) != len(dataset):
            problems.append(f"it has {len(found.labels)} samples, but len() gives {len(dataset)}")
        return found._replace(transform=transform), problems
    except (ArgumentError, AttributeError, TypeError) as error:  # of another version, or half made
        return ForeignImages(transform, np.empty(0, dtype=np.int64)), [*problems, str(error)]


def _giver_of_samples(dataset: object) -> str:
    """The class whose `__getitem__` a dataset has, unless another was put into that class later."""
    for kind in type(dataset).__mro__:
        method = vars(kind).get("__getitem__")
        if method is None:
            continue
        written = f"{module_of(method) or kind.__module__}.{getattr(method, '__qualname__', '?')}"
        return _name(kind) if written == f"{_name(kind)}.__getitem__" else written
    return _NOBODY


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_target_transform(target_transform: object) -> list[str]:
    if target_transform is None:
        return []
    return [
        f"target_transform={target_transform!r} would have to be called for every sample: apply it to the "
        "labels that the dataset has listed, and leave it out"
    ]


# Files.


def _files(dataset: Dataset, place: _Files) -> ForeignImages:
    opens = getattr(dataset, place.opens, None) if place.opens else None
    if opens is not None:
        _check_opens(opens, place.opens.strip("_"))
    if place.pairs:
        paths, labels = _unzipped(getattr(dataset, place.pairs), place.pairs)
    else:
        paths, labels = getattr(dataset, place.paths), getattr(dataset, place.labels)
    return _listed(paths, labels)


def _listed(paths: Sequence[Any], labels: Labels) -> ForeignImages:
    if len(labels) < len(paths):
        raise ArgumentError(f"it has {len(paths)} images and {len(labels)} labels")
    kinds = set(map(type, paths))
    if not all(issubclass(kind, str | os.PathLike) for kind in kinds):
        raise ArgumentError("not all of its images are paths of files")
    names = [*paths] if kinds == {str} else [*map(os.fspath, paths)]
    if kinds != {str} and not all(isinstance(name, str) for name in names):
        raise ArgumentError("not all of its images are paths of files")
    others = {os.path.splitext(name)[1] for name in names if not name.lower().endswith(_EXTENSIONS)}
    if others:
        raise ArgumentError(f"it lists files of which no decoder is known to read all: {sorted(others)}")
    return ForeignImages(None, _whole_numbers(labels[: len(paths)]), paths=names)


def _unzipped(pairs: Sequence[Any], name: str) -> tuple[list[Any], list[object]]:
    if not isinstance(pairs, list | tuple) or set(map(len, pairs)) - {2}:
        raise ArgumentError(f"{name} is no list of (path, label)")
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _check_opens(opens: object, argument: str) -> None:
    """ArgumentError unless files are opened by torchvision itself, with Pillow."""
    written = module_of(opens), getattr(opens, "__qualname__", "")
    if written[0] not in ("torchvision.datasets.folder", "torchvision.datasets.lfw") or (
        written[1] not in _LOADERS
    ):
        raise ArgumentError(f"{argument}={opens!r} is the user's, and opens files in a way of its own")
    # What it calls may have been exchanged in torchvision itself.
    called = getattr(sys.modules.get("torchvision.datasets.folder"), "pil_loader", None)
    if module_of(called) != "torchvision.datasets.folder":
        raise ArgumentError(f"torchvision's pil_loader is {called!r}, which opens files in a way of its own")
    backend = getattr(sys.modules.get("torchvision"), "get_image_backend", lambda: "PIL")()
    if written[1] == "default_loader" and backend != "PIL":
        raise ArgumentError(f"torchvision opens images with {backend!r}, and not with Pillow")


# One array.


def _pixels(dataset: Dataset, place: _Pixels) -> ForeignImages:
    images, labels = getattr(dataset, place.images), getattr(dataset, place.labels)
    if not getattr(dataset, "compat", True):  # QMNIST
        raise ArgumentError("compat=False gives labels of several numbers")
    if labels is None:
        raise ArgumentError("it has no labels")
    array = images.numpy() if isinstance(images, torch.Tensor) else images
    channels = {"NHWC": (3,), "NCHW": (1,), "NHW": ()}[place.axes]
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != len(place.axes):
        kind = getattr(array, "dtype", type(array).__name__)
        raise ArgumentError(f"{place.images} is {kind} {getattr(array, 'shape', '')}, and no images of bytes")
    if channels and array.shape[channels[0]] != 3:
        raise ArgumentError(f"{place.images} has the shape {array.shape}, and not three channels")
    if place.axes == "NCHW":
        array = array.transpose(0, 2, 3, 1)
    if not len(array):
        raise ArgumentError("it has no images")
    # A copy in any case: whether the script has changed its own is seen by comparing the two.
    pixels = np.array(array, order="C")
    if isinstance(labels, torch.Tensor | np.ndarray) and labels.ndim == 2 and hasattr(dataset, "compat"):
        labels = labels[:, 0]
    if len(labels) < len(pixels):
        raise ArgumentError(f"it has {len(pixels)} images and {len(labels)} labels")
    wanted = labels[: len(pixels)]
    if place.as_integers:
        wanted = _as_integers(wanted)
    return ForeignImages(None, _whole_numbers(wanted), pixels=pixels)


def _as_integers(labels: Labels) -> Labels:
    """What `int` makes of each label."""
    array = labels.numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ArgumentError("its labels are not all finite numbers")
    return array.astype(np.int64) if array.ndim == 1 and array.dtype.kind in "biuf" else labels


def _whole_numbers(labels: Labels) -> NDArray[np.int64]:
    """Labels that torch collates as 64-bit integers; ArgumentError if it would give something else."""
    if isinstance(labels, torch.Tensor):
        labels = labels.numpy()
    if isinstance(labels, np.ndarray):
        if labels.dtype != np.int64 or labels.ndim != 1:
            raise ArgumentError(f"its labels are {labels.dtype} {labels.shape}, and not integers, one each")
        return labels.copy()
    others = set(map(type, labels)) - {int, np.int64}
    if others:
        names = ", ".join(sorted(kind.__name__ for kind in others))
        raise ArgumentError(f"its labels are not all integers ({names})")
    try:
        return np.fromiter(labels, dtype=np.int64, count=len(labels))
    except OverflowError:
        raise ArgumentError("its labels are integers of more than 64 bits") from None


# timm.


def _look_into_timm(dataset: Dataset, problems: list[str]) -> tuple[ForeignImages | None, list[str]]:
    reader = dataset.reader
    if _giver_of_samples(reader) != _TIMM_FOLDER:
        problems.append(f"its reader is a {_name(type(reader))}: only folders of images can be translated")
    if dataset.load_bytes:
        problems.append("load_bytes=True gives the bytes of files to the transform")
    if dataset.input_img_mode != "RGB":
        problems.append(f"input_img_mode={dataset.input_img_mode!r} gives other images than RGB")
    if getattr(dataset, "additional_features", None) is not None:
        problems.append("additional_features adds more to its samples")
    problems += _of_target_transform(dataset.target_transform)
    nothing = ForeignImages(dataset.transform, np.empty(0, dtype=np.int64))
    if _giver_of_samples(reader) != _TIMM_FOLDER:
        return nothing, problems
    try:
        found = _listed(*_unzipped(reader.samples, "reader.samples"))
    except (ArgumentError, AttributeError, TypeError) as error:
        return nothing, [*problems, str(error)]
    return found._replace(transform=dataset.transform), problems
