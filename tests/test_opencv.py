"""OpenCV is imported for images only, before workers are forked, and has no threads of its own in them."""

import ast
import os
import sys
from pathlib import Path

import cv2
import pytest
import torch
from tests import warm_python
from tests.images_to_pack import make_images
from torch.utils.data import Dataset

import rekindle as rk

ROOT = Path(rk.__file__).parent
_OF_PLAIN_DATA = """
import sys
import torch
import rekindle as rk

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return "cv2" in sys.modules

loader = rk.DataLoader(Numbers(), num_workers=2, batch_size=2)
found = [value for batch in loader for value in batch.tolist()]
assert found == [False] * 4, found
print(loader.report())
assert "cv2" not in sys.modules
"""
_OF_IMAGES = """
import os, sys
import rekindle as rk

at_forks = []
os.register_at_fork(before=lambda: at_forks.append("cv2" in sys.modules))
transform = [rk.transforms.ToTensor()] if {with_steps} else None
loader = rk.DataLoader(rk.open({folder!r}, transform=transform), num_workers=2, batch_size=None)
image, label = next(iter(loader))
assert image.shape[-1 if transform is None else 0] == 3
assert at_forks and all(at_forks), at_forks
"""


def test_a_loader_of_other_data_does_not_import_opencv() -> None:
    ended = warm_python.run("-c", _OF_PLAIN_DATA)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("with_steps", [True, False])
def test_workers_that_prepare_images_are_forked_with_opencv(tmp_path: Path, with_steps: bool) -> None:
    folder = str(make_images(tmp_path))
    ended = warm_python.run("-c", _OF_IMAGES.format(folder=folder, with_steps=with_steps))
    assert ended.returncode == 0, ended.stderr


class ThreadsOfOpenCV(Dataset[int]):
    """The number of threads that OpenCV has where a sample is loaded."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return cv2.getNumThreads()


def test_opencv_has_one_thread_in_a_worker_and_keeps_those_that_the_script_gave_it() -> None:
    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    try:
        batches = [*rk.DataLoader(ThreadsOfOpenCV(), num_workers=1)]
        assert torch.cat(batches).tolist() == [1, 1]
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(before)


def test_a_worker_starts_where_what_is_called_cv2_is_not_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", type(os)("cv2"))
    assert len([*rk.DataLoader(range(2), num_workers=1)]) == 2


def test_opencv_is_set_up_wherever_it_is_used() -> None:
    direct = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(alias.name == "cv2" for alias in node.names)
    }
    assert direct == {"prepare/opencv.py"}
