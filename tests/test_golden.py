"""Batches of every kind of loader are the same, byte for byte, as when their hashes were written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from golden_configurations import HASHES, batches_hash, configurations, make_images

GOLDEN = json.loads(HASHES.read_text())
CONFIGURATIONS = configurations()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("golden") / "images")


def test_every_configuration_has_a_hash() -> None:
    assert list(GOLDEN) == list(CONFIGURATIONS)
    assert len(GOLDEN) >= 25


@pytest.mark.filterwarnings("ignore:with a sampler, the order is given")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_batches_are_what_they_were(name: str, images: Any) -> None:
    torch.manual_seed(0)
    assert batches_hash(CONFIGURATIONS[name](images)) == GOLDEN[name]
