"""Which datasets of an HDF5 file hold the images, the labels and the names of samples.

Part of the program `inspector_process`, so it imports nothing of the package.
"""

from __future__ import annotations

import h5py
import numpy as np

MAX_LISTED = 40
IMAGE_NAMES = ("images", "image", "data", "x", "img", "imgs", "jpeg", "jpg", "encoded", "features")
LABEL_NAMES = ("labels", "label", "targets", "target", "y", "cls", "class", "classes")
KEY_NAMES = ("keys", "key", "filenames", "filename", "paths", "names")


Datasets = dict[str, h5py.Dataset]


class UnsupportedError(Exception):
    """The file holds something that cannot be read, in words for the user."""


def kind_of(data: h5py.Dataset) -> str:
    """`vlen`: bytes of any length; `fixed`: bytes of one length; `numbers`; or `other`."""
    kind = data.id.get_type()
    if isinstance(kind, h5py.h5t.TypeVlenID):
        base = kind.get_super()
        return "vlen" if isinstance(base, h5py.h5t.TypeIntegerID) and base.get_size() == 1 else "other"
    if isinstance(kind, h5py.h5t.TypeStringID):
        return "vlen" if kind.is_variable_str() else "fixed"
    if isinstance(kind, h5py.h5t.TypeOpaqueID):
        return "fixed"
    if isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID | h5py.h5t.TypeEnumID):
        return "numbers" if data.dtype.kind in "biuf" else "other"
    return "other"


def _is_pixels(data: h5py.Dataset, axes: tuple[int, ...]) -> bool:
    return kind_of(data) == "numbers" and data.dtype == np.uint8 and len(data.shape or ()) in axes


def _could_be_images(data: h5py.Dataset) -> bool:
    return (kind_of(data) in ("vlen", "fixed") and len(data.shape or ()) == 1) or _is_pixels(data, (3, 4))


def could_be_sample(data: h5py.Dataset) -> bool:
    """Whether a dataset may be one sample: an encoded image, or pixels."""
    return (kind_of(data) == "fixed" and data.shape == ()) or _is_pixels(data, (1, 2, 3))


def list_datasets(found: Datasets) -> str:
    """What the file has, for an error."""
    lines = [f"{name!r} ({data.dtype}, {data.shape})" for name, data in list(found.items())[:MAX_LISTED]]
    more = f" and {len(found) - MAX_LISTED:,} more" if len(found) > MAX_LISTED else ""
    return f"The file has: {', '.join(lines) or 'no datasets'}{more}."


def group_of(name: str) -> str:
    """The name of the group that a dataset is in."""
    return name.rpartition("/")[0]


def last_part(name: str) -> str:
    """A name without its group, in lower case."""
    return name.rpartition("/")[2].lower()


def choose_images(found: Datasets, wanted: str | None) -> tuple[str | None, str]:
    """The dataset of all images, or None and the group below which each dataset is a sample."""
    if wanted is not None:
        name = wanted.strip("/")
        if name in found:
            is_array = kind_of(found[name]) == "numbers" and len(found[name].shape or ()) > 1
            if not is_array and not _could_be_images(found[name]):
                raise UnsupportedError(
                    f"images={wanted!r} is not a dataset of images. {list_datasets(found)}"
                )
            return name, ""
        if any(one.startswith(f"{name}/") or not name for one in found):
            return None, f"{name}/" if name else ""
        raise UnsupportedError(f"there is no dataset or group {wanted!r}. {list_datasets(found)}")
    candidates = {name: data for name, data in found.items() if _could_be_images(data)}
    named = [name for usual in IMAGE_NAMES for name in candidates if last_part(name) == usual]
    if len(named) == 1 or (named and last_part(named[0]) != last_part(named[1])):
        return named[0], ""
    samples = [name for name, data in found.items() if could_be_sample(data)]
    each_is_a_sample = len(samples) > 1 and not any(
        len(data.shape) == 4 or kind_of(data) == "vlen" for data in candidates.values()
    )
    if each_is_a_sample:
        return None, ""
    images = [name for name in candidates if last_part(name) not in LABEL_NAMES]
    if len(images) == 1:
        return images[0], ""
    raise UnsupportedError(
        f"cannot tell which dataset holds the images: give images=. {list_datasets(found)}"
    )


def _is_integers(data: h5py.Dataset) -> bool:
    return kind_of(data) == "numbers" and data.dtype.kind in "iu"


def choose_labels(found: Datasets, wanted: str | None, images: str) -> str | None:
    """The dataset of the labels of these images, by its name or by being the only one that fits."""
    count = found[images].shape[0]
    fitting = [
        name
        for name, data in found.items()
        if name != images
        and data.shape == (count,)
        and (kind_of(data) in ("vlen", "fixed") or _is_integers(data))
    ]
    if wanted is not None:
        if wanted.strip("/") in fitting:
            return wanted.strip("/")
        raise UnsupportedError(
            f"labels={wanted!r} is not a dataset of {count} integers or strings. {list_datasets(found)}"
        )
    around, elsewhere = _by_nearness(found, fitting, images)
    integers: list[str] = []  # of the nearest group that has some: of several, none can be chosen
    for groups in (around, [elsewhere]):
        named = [
            name for near in groups for usual in LABEL_NAMES for name in near if last_part(name) == usual
        ]
        if named:
            return named[0]
        for near in groups:
            integers = integers or [name for name in near if found[name].dtype.kind in "iu"]
        if len(integers) == 1:
            return integers[0]
    return None


def choose_keys(found: Datasets, images: str, labels: str | None) -> str | None:
    """A dataset of strings, one for each image, whose name suggests that they are names."""
    fitting = [
        name
        for name, data in found.items()
        if name not in (images, labels)
        and data.shape == found[images].shape[:1]
        and kind_of(data) in ("vlen", "fixed")
    ]
    around, elsewhere = _by_nearness(found, fitting, images)
    groups = (*around, elsewhere)
    return next(
        (name for near in groups for usual in KEY_NAMES for name in near if last_part(name) == usual), None
    )


def _by_nearness(found: Datasets, names: list[str], images: str) -> tuple[list[list[str]], list[str]]:
    """The names in the images' own group and in each group around it; and those elsewhere.

    A group that has images of the same name is left out: the labels of `fold1/images` are not beside
    `fold0/images`.
    """
    group, _, last = images.rpartition("/")
    around = [group]
    while group:
        group = group_of(group)
        around.append(group)
    elsewhere = [
        name for name in names if group_of(name) not in around and f"{group_of(name)}/{last}" not in found
    ]
    return [[name for name in names if group_of(name) == one] for one in around], elsewhere
