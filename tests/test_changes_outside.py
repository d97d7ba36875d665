"""What scripts change outside of what workers have copies of: the next epoch sees it, as in torch."""

import multiprocessing
import os
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch.utils.data
from PIL import Image
from torch.utils.data import Dataset

import rekindle as rk
import warm_python

Torch = torch.utils.data.DataLoader


class Counts(Dataset):
    """Samples are the value of a counter that is shared with the script."""

    def __init__(self):
        self.counter = multiprocessing.get_context("fork").Value("i", 0)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.counter.value


class Reads(Dataset):
    """Samples are what is in a file, read for every sample."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 16

    def __getitem__(self, index):
        with open(self.path) as file:
            return int(file.read())


def three_epochs(load, dataset, change, **arguments):
    loader = load(dataset, batch_size=2, num_workers=2, **arguments)
    epochs = []
    for epoch in range(3):
        epochs.append([value for batch in loader for value in batch.tolist()])
        change(epoch + 1)
    return epochs


@pytest.mark.parametrize("persistent", [False, True])
def test_a_shared_counter_is_seen_by_the_whole_next_epoch(persistent):
    for load in (Torch, rk.DataLoader):
        dataset = Counts()
        found = three_epochs(
            load, dataset, lambda n, d=dataset: setattr(d.counter, "value", n), persistent_workers=persistent
        )
        assert found == [[0] * 16, [1] * 16, [2] * 16]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_file_that_is_replaced_is_seen_by_the_whole_next_epoch(persistent, tmp_path):
    for load in (Torch, rk.DataLoader):
        path = tmp_path / "stage"
        path.write_text("0")

        def replace(number, path=path):
            path.with_suffix(".new").write_text(str(number))
            path.with_suffix(".new").replace(path)

        found = three_epochs(load, Reads(path), replace, persistent_workers=persistent)
        assert found == [[0] * 16, [1] * 16, [2] * 16]


class ReadsArchive(Reads):
    """Samples are read by a library's function, which is not looked into."""

    def __getitem__(self, index):
        return int(zipfile.ZipFile(self.path).read("stage"))


def test_a_file_that_a_library_reads_is_seen_by_the_whole_next_epoch(tmp_path):
    def replace(number):
        with zipfile.ZipFile(tmp_path / "stage.zip", "w") as archive:
            archive.writestr("stage", str(number))

    replace(0)
    found = three_epochs(rk.DataLoader, ReadsArchive(tmp_path / "stage.zip"), replace, shuffle=True)
    assert found == [[0] * 16, [1] * 16, [2] * 16]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_images_of_a_folder_that_are_rewritten_are_seen_by_the_whole_next_epoch(executor, tmp_path):
    def rewrite(number):
        (tmp_path / "class").mkdir(exist_ok=True)
        for name in range(16):
            Image.new("L", (1, 1), number).save(tmp_path / "class" / f"{name}.png")

    rewrite(0)
    dataset = rk.open(tmp_path, transform=rk.transforms.PILToTensor())
    loader = rk.DataLoader(dataset, batch_size=2, num_workers=2, shuffle=True, executor=executor)
    for epoch in range(3):
        assert {int(value) for images, _ in loader for value in images.flatten()} == {epoch}
        rewrite(epoch + 1)


def test_a_projects_own_package_with_the_name_of_a_library_is_looked_into(tmp_path: Path):
    """In an interpreter of its own, where `timm` is the project's."""
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").touch()
    (tmp_path / "timm" / "toy.py").write_text(
        textwrap.dedent(
            """
            SIZE = 0

            class Toy:
                def __len__(self):
                    return 4

                def __getitem__(self, index):
                    return SIZE
            """
        )
    )
    program = textwrap.dedent(
        """
        import rekindle as rk
        from timm import toy

        loader = rk.DataLoader(toy.Toy(), batch_size=4, num_workers=1)
        for epoch in range(3):
            toy.SIZE = epoch
            print([batch.tolist() for batch in loader])
        """
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = warm_python.run("-c", program, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:3] == [str([[epoch] * 4]) for epoch in range(3)]
