"""Near-duplicates are found in every kind of dataset, among images of the same label only."""

import sys

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, Subset

import rekindle as rk
from near_duplicates import GROUPS, LABELS, Foreign, folder, images
from rekindle.choose.duplicates import search
from rekindle.choose.duplicates.search import near_each_other
from rekindle.tools.cli import main
from rekindle.tools.rgb_dataset import as_rgb


def found(dataset, **arguments):
    groups = rk.find_redundancy(dataset, **arguments)
    return sorted(group.ids for group in groups.groups)


def as_tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1)


FORMS = {
    "Pillow": Image.fromarray,
    "array": lambda pixels: pixels,
    "channels first": lambda pixels: np.ascontiguousarray(pixels.transpose(2, 0, 1)),
    "tensor": as_tensor,
    "floats": lambda pixels: as_tensor(pixels) / 255,
    "normalised": lambda pixels: (as_tensor(pixels) / 255 - 0.5) / 0.25,
    "alpha": lambda pixels: np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)]),
    "16 bits": lambda pixels: pixels.astype(np.uint16) * 257,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_groups_are_found_whatever_the_items_are(form):
    assert found(Foreign(FORMS[form])) == GROUPS


def test_the_same_groups_are_found_in_arrays_folders_packed_files_and_behind_urls(tmp_path):
    assert found(rk.ArrayImages(images(), LABELS)) == GROUPS
    root = folder(tmp_path / "train")
    opened = rk.open(root, transform=rk.transforms.RandomResizedCrop(8))
    names = [
        [int(member.path[-5]) for member in group.members] for group in rk.find_redundancy(opened).groups
    ]
    assert names == GROUPS
    ids = found(opened)
    assert main(["pack", str(root), str(tmp_path / "train.tar")]) == 0
    assert found(rk.open(tmp_path / "train.tar")) == ids
    fsspec.filesystem("memory").put(str(root), "near-duplicates", recursive=True)
    remote = rk.RemoteOptions(cache_directory=tmp_path / "cache")
    behind = rk.find_redundancy(rk.open("memory://near-duplicates", remote=remote))
    assert sorted(group.ids for group in behind.groups) == ids
    assert behind.groups[0].class_name == "class0"
    assert behind.groups[0].members[0].path.startswith("memory://")


def test_of_a_subset_indices_are_its_own():
    data = rk.ArrayImages(images(), LABELS)
    assert found(Subset(Subset(data, [8, 4, 3, 1, 0, 6]), [0, 1, 3, 4, 5])) == [[0, 3], [2, 4]]


class Compose:
    transforms: list

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for step in self.transforms:
            image = step(image)
        return image


def test_images_are_compared_before_the_steps_of_a_compose():
    def noise(image):
        return np.random.default_rng().integers(0, 256, np.asarray(image).shape).astype(np.uint8)

    assert found(Foreign(Image.fromarray, Compose([noise]))) == GROUPS


def test_images_without_labels_are_all_compared():
    class Alone(Foreign):
        def __getitem__(self, index):
            return super().__getitem__(index)[0]

    assert found(Alone(as_tensor)) == [[0, 5, 8], [1, 6], [2, 7]]


# What is near.


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["bits", "cosine", "l2"]), st.integers(1, 40))
def test_groups_hold_what_is_near_their_first(seed, metric, together):
    random = np.random.default_rng(seed)
    size, labels = 24, random.integers(0, 3, 24)
    if metric == "bits":
        vectors, threshold = random.integers(0, 8, (size, 2)).astype(np.uint8), 1
        bits = np.unpackbits(vectors, axis=1).astype(int)
        distances = np.abs(bits[:, None] - bits).sum(-1)
    else:
        vectors, threshold = random.normal(size=(size, 3)).astype(np.float32), 0.4
        if metric == "cosine":
            threshold = 0.1
            unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            distances = 1 - unit @ unit.T
        else:
            distances = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    near = (distances <= threshold) & (labels[:, None] == labels)
    expected, left = [], list(range(size))
    while left:  # the groups, by brute force
        group = [row for row in left if row == left[0] or near[left[0], row]]
        left = [row for row in left if row not in group]
        expected += [group] if len(group) > 1 else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_MOST_PAIRS", together * size)
        groups = near_each_other(vectors, labels, threshold, metric)
    assert sorted(group.rows.tolist() for group in groups) == expected
    for rows, apart in groups:
        to_first = distances[rows[0], rows[1:]]
        np.testing.assert_allclose(apart, [to_first.min(), *to_first], atol=1e-5)


def test_the_threshold_is_the_largest_distance():
    groups = rk.find_redundancy(rk.ArrayImages(images(), LABELS))
    assert groups.found_by == {"measure": "different bits of phash", "threshold": 40}
    distances = {member.id: member.distance for group in groups.groups for member in group.members}
    assert distances[0] == distances[8] == 0
    assert 0 < distances[1] == distances[6] <= 40
    bits = int(distances[1])
    assert [1, 6] in found(rk.ArrayImages(images(), LABELS), threshold=bits)
    assert [1, 6] not in found(rk.ArrayImages(images(), LABELS), threshold=bits - 1)
    assert found(rk.ArrayImages(images(), LABELS), threshold=0) == [[0, 8]]


def mean_colours(batch):
    return torch.stack([torch.from_numpy(image).float().mean((0, 1)) for image in batch])


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_an_embedding_decides_what_is_a_near_duplicate(metric):
    colours = np.array([[200, 10, 10], [10, 200, 10], [201, 10, 10], [10, 199, 11], [12, 10, 220]], np.uint8)
    flat = np.broadcast_to(colours[:, None, None], (5, 8, 8, 3)).copy()
    data = rk.ArrayImages(flat, [0] * 5)
    threshold = {"l2": 2.0, "cosine": 1e-3}[metric]
    assert found(data, embed=mean_colours, threshold=threshold, metric=metric) == [[0, 2], [1, 3]]
    assert found(data) == [[0, 1, 2, 3, 4]], "hashes see no colour"


# What goes wrong.


def test_what_cannot_be_read_is_named_and_left_out(tmp_path):
    root = folder(tmp_path / "train")
    (root / "class0" / "0.png").write_bytes((root / "class0" / "0.png").read_bytes()[:200])
    groups = rk.find_redundancy(rk.open(root))
    names = [[int(one.path[-5]) for one in group.members] for group in groups.groups]
    assert sorted(names) == [[1, 6], [5, 8]]
    assert len(groups.unreadable) == 1
    assert "0.png" in groups.unreadable[0]


class Many(Dataset):
    """1,100 images, of which 600 to 1,000 cannot be read; the others come twice each."""

    def __len__(self):
        return 1100

    def __getitem__(self, index):
        if 600 <= index < 1000:
            raise OSError(f"no {index} today")
        return np.random.default_rng(index // 2).integers(0, 256, (32, 32, 3)).astype(np.uint8), 0


def first_pixels(batch):
    return np.stack([image[0, :4].ravel() for image in batch])


@pytest.mark.parametrize("arguments", [{}, {"embed": first_pixels, "metric": "l2", "threshold": 1}])
@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches_that_cannot_be_read_are_passed_over(workers, arguments):
    groups = rk.find_redundancy(Many(), workers=workers, **arguments)
    assert sorted(group.ids for group in groups.groups) == [
        [first, first + 1] for first in [*range(0, 600, 2), *range(1000, 1100, 2)]
    ]
    assert len(groups.unreadable) == 400
    assert any("OSError: no 777 today" in reason for reason in groups.unreadable)


class Labelled(Foreign):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], "cat"


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (Subset(rk.ArrayImages(images(), LABELS), []), {}, "no samples"),
        (iter([]), {}, "map-style dataset with a length"),
        (Labelled(as_tensor), {}, "must be an integer"),
        (Foreign(lambda pixels: pixels[:, 0, 0]), {}, "is no image"),
        (Foreign(lambda pixels: pixels * np.nan), {}, "not finite"),
        (Foreign(as_tensor), {"threshold": 256}, "0 to 255"),
        (Foreign(as_tensor), {"threshold": 0.5}, "bits"),
        (Foreign(as_tensor), {"workers": -1}, "workers"),
        (Foreign(as_tensor), {"embed": mean_colours}, "give a distance"),
        (Foreign(as_tensor), {"embed": 3, "threshold": 1}, "function"),
        (Foreign(as_tensor), {"embed": mean_colours, "threshold": 1, "metric": "l1"}, "metric"),
        (Foreign(as_tensor), {"embed": lambda batch: [0.0], "threshold": 1}, "row for each"),
        (Foreign(as_tensor), {"embed": lambda batch: [[np.nan]] * len(batch), "threshold": 1}, "not finite"),
    ],
)
def test_what_cannot_work_is_refused(dataset, arguments, message):
    with pytest.raises(rk.RekindleError, match=message):
        rk.find_redundancy(dataset, **arguments)


@pytest.mark.parametrize("library", ["faiss", "imagehash"])
def test_a_missing_library_is_named_with_what_to_install(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(rk.ArgumentError, match=rf"{library} is not installed.*rekindle\[dedupe\]"):
        rk.find_redundancy(Foreign(as_tensor))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (1, 4, 5), (4, 5, 3), (3, 4, 5), (4, 5, 4)])
def test_images_of_any_shape_become_rgb(shape):
    random = np.random.default_rng(0)
    assert as_rgb(random.integers(0, 256, shape).astype(np.uint8)).shape == (4, 5, 3)
    assert as_rgb(np.full(shape, True)).min() == 255


def test_names_that_are_no_text_are_kept_in_the_file_of_groups(tmp_path):
    members = (rk.choose.Member(0, "caf\udce9.png", 3), rk.choose.Member(1, "café.png", 3))
    groups = rk.RedundantGroups(2, (rk.choose.Group(members, 0, "one"),), {}, "train")
    groups.save(tmp_path / "groups.json")
    assert rk.RedundantGroups.load(tmp_path / "groups.json").groups == groups.groups
    assert "café" in (tmp_path / "groups.json").read_text(encoding="utf-8")
