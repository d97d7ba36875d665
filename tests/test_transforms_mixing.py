"""MixUp and CutMix on batches: torchvision's results for the same draws, and labels to match."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rekindle.transforms as rk
from light_torchvision import v2
from rekindle.errors import ArgumentError

IMAGES = torch.rand(6, 3, 20, 30, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])


def test_mixup_equals_torchvisions_for_the_same_share() -> None:
    theirs = v2.MixUp(alpha=1.0, num_classes=5)
    share = 0.3
    expected = theirs.transform(IMAGES, {"lam": share, "labels": LABELS, "batch_size": 6})
    soft = theirs.transform(LABELS, {"lam": share, "labels": LABELS, "batch_size": 6})
    images, labels = rk.MixUp(num_classes=5).apply(IMAGES, LABELS, np.array([share, 0.9]))
    assert torch.equal(images, expected)
    assert torch.equal(labels, soft)


def test_cutmix_equals_torchvisions_for_the_same_box() -> None:
    theirs = v2.CutMix(num_classes=5)
    images, labels = rk.cutmix(IMAGES, torch.eye(5)[LABELS], (4, 7, 9, 12))
    parameters = {"box": (7, 4, 19, 13), "lam_adjusted": 1 - 9 * 12 / 600, "labels": LABELS, "batch_size": 6}
    assert torch.equal(images, theirs.transform(IMAGES, parameters))
    assert torch.allclose(labels, theirs.transform(LABELS, parameters))


def test_cutmix_boxes_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    step, theirs = rk.CutMix(alpha=0.7), v2.CutMix(alpha=0.7)
    ours = [step.box(20, 30, row) for row in np.random.default_rng(1).random((3000, 4))]
    boxes = [theirs.make_params([IMAGES])["box"] for _ in range(3000)]
    others = [(y1, x1, y2 - y1, x2 - x1) for x1, y1, x2, y2 in boxes]
    for part in range(4):
        assert abs(np.mean([b[part] for b in ours]) - np.mean([b[part] for b in others])) < 0.6
        assert abs(np.std([b[part] for b in ours]) - np.std([b[part] for b in others])) < 0.6


@pytest.mark.parametrize("step", [rk.MixUp(num_classes=5, alpha=0.4), rk.CutMix(num_classes=5)])
def test_mixing_is_pure_and_its_labels_are_distributions(step: rk.MixUp | rk.CutMix) -> None:
    before = IMAGES.clone()
    for row in np.random.default_rng(2).random((20, step.uniforms)):
        images, labels = step.apply(IMAGES, LABELS, row)
        again, _ = step.apply(IMAGES, LABELS, row)
        assert torch.equal(images, again)
        assert torch.allclose(labels.sum(1), torch.ones(6))
        assert labels.shape == (6, 5)
    assert torch.equal(IMAGES, before)
    images, labels = step(IMAGES, torch.eye(5)[LABELS])
    assert labels.shape == (6, 5)


@pytest.mark.parametrize(("label", "named"), [(39, 39), (-1, -1)])
def test_a_label_that_is_no_class_is_named(label: int, named: int) -> None:
    labels = torch.tensor([0, 1, 0, 1, 0, label])
    for step in (rk.MixUp(num_classes=2), rk.CutMix(num_classes=2)):
        with pytest.raises(ArgumentError, match=f"a label is {named}, but num_classes is 2: .* from 0 to 1"):
            step(IMAGES, labels)


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (IMAGES[0], LABELS, 5, "N × C × H × W"),
        (torch.zeros(6, 3, 4, 4, dtype=torch.uint8), LABELS, 5, "batch of floats"),
        (IMAGES, LABELS[:5], 5, "for 6 images"),
        (IMAGES, LABELS, None, "Give num_classes"),
        (IMAGES, LABELS / 2, 5, r"labels are torch.float32, one number for each image\. .*regression"),
        (IMAGES, LABELS[:, None], 5, r"\(6, 1\), but num_classes is 5"),
        (IMAGES, torch.eye(4)[LABELS.clamp(max=3)], 5, r"\(6, 4\), but num_classes is 5.* N × 5"),
        (IMAGES, ["cat"] * 6, 5, "labels are of type list"),
        (IMAGES, None, 5, "labels are of type NoneType"),
    ],
)
def test_batches_that_do_not_match_are_rejected(
    images: torch.Tensor, labels: Any, classes: int | None, message: str
) -> None:
    for step in (rk.MixUp(num_classes=classes), rk.CutMix(num_classes=classes)):
        with pytest.raises(ArgumentError, match=message):
            step(images, labels)
