"""Datasets as they are written every day are seen to give the same again: their batches are split."""

from __future__ import annotations

import io
import json
import logging
import os
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pytest
import torch
from PIL import Image, ImageFilter
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, get_worker_info

from rekindle.core.analysis.self_changes import may_read_on
from rekindle.core.analysis.worker_questions import asks_which_worker

LOG = logging.getLogger(__name__)
MEAN, CLASSES = [0.5, 0.5, 0.5], {"cat": 0, "dog": 1}


class Compose:
    """As torchvision's."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Resize:
    """A transform of a script's own."""

    def __init__(self, size: int, fill: int = 0) -> None:
        self.size, self.fill = size, fill

    def __call__(self, image: Any) -> Any:
        width, height = image.size
        if width > height:
            width, height = self.size, int(self.size * height / width)
            height += height % 2
        return image.resize((width, height)).rotate(3, fillcolor=self.fill).filter(ImageFilter.SHARPEN)


class Jitter:
    """Changes the sample that it is given."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        image, boxes = sample["image"], sample["boxes"]
        if random.random() < 0.5:
            image = image[:, ::-1]
            boxes[:, [0, 2]] = image.shape[1] - boxes[:, [2, 0]]
        image = image.astype(np.float32)
        image -= 3
        image[0] *= 2
        sample["image"] = image
        sample.update(boxes=boxes)
        return sample


class Folder(Dataset[Any]):
    """Files of images, found when it is made."""

    def __init__(self, root: Path, transform: Any = None) -> None:
        self.root, self.transform = root, transform
        self.samples = [(str(path), 0) for path in sorted(root.glob("*"))]
        self.loader = self.load

    def load(self, path: str) -> Image.Image:
        with open(path, "rb") as file:
            image = Image.open(file)
            image.load()
            return image.convert("RGB")

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        name, _, suffix = path.partition(".")
        try:
            image = self.loader(os.path.join(self.root, path))
        except OSError:
            LOG.warning("%s of %s is damaged", name + suffix, self.root)
            return self[random.randint(0, len(self.samples) - 1)]
        if self.transform is not None:
            image = self.transform(image)
        return image, target


class InMemory(Folder):
    """Images that were decoded before, and labels in a dictionary."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.images = [Image.new("RGB", (8, 8)) for _ in range(3)]
        self.labels = dict.fromkeys(range(3), "cat")

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        image = image.resize((4, 4)).rotate(90)
        array = np.array(image)
        array[0] += 1
        array.sort(axis=0)
        mean = np.array(MEAN)
        array -= mean.astype(np.uint8)
        return torch.from_numpy(array).permute(2, 0, 1).float().div_(255), CLASSES.get(self.labels[index], 0)


class Frame(Dataset[Any]):
    """Rows of a table."""

    def __init__(self) -> None:
        self.frame = pandas.DataFrame({"path": ["a"], "label": [1]})
        self.columns = ["path", "label"]

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        columns = list(self.columns)
        columns.append("extra")
        label = row["label"]
        label += 1
        return row["path"], torch.tensor(label), self.frame.loc[index, "label"], columns


class Hdf5(Dataset[Any]):
    """A file that each worker opens for itself."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, None
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(10.0)

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path, "r", swmr=True)
        x = torch.from_numpy(np.asarray(self.file["x"][index : index + 1]))
        return x.float() / 255


class Detection(Dataset[Any]):
    """Boxes of COCO's kind, and a target that is put together."""

    def __init__(self) -> None:
        self.ids, self.transforms = [3, 4], Jitter()
        self.annotations: dict[int, list[Any]] = {3: [{"bbox": [1, 2, 3, 4], "category_id": 1}], 4: []}

    def __getitem__(self, index: int) -> Any:
        target: dict[str, Any] = {"boxes": [], "labels": []}
        for number, one in enumerate(self.annotations[self.ids[index]]):
            x, y, w, h = one["bbox"]
            w += x
            h += y
            target["boxes"].append([x, y, w, h])
            target["labels"].append(one["category_id"] + number)
        boxes = np.array(target["boxes"]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        keep = [number for number, box in enumerate(boxes) if box[2] > box[0]]
        keep.sort()
        sample = {"image": np.zeros((8, 8, 3)), "boxes": boxes[keep], "meta": {"id": index}}
        return self.transforms(sample)


class Text(Dataset[Any]):
    """Lines at places that are known, and a vocabulary."""

    def __init__(self) -> None:
        self.lines = ['{"text": "a b"}']
        self.vocabulary, self.cache = {"a": 1}, dict[int, Any]()
        self.special, self.length = [0], 8

    def encode(self, text: str) -> list[int]:
        ids = [self.vocabulary.get(word, 0) for word in text.split()]
        ids.insert(0, self.special[0])
        ids.extend(self.special)
        del ids[self.length :]
        return ids

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = self.encode(json.loads(self.lines[index])["text"])
        ids = torch.tensor(self.cache[index])
        labels = ids.clone()
        labels[labels == 0] = -100
        labels[:1].fill_(0)
        return {"ids": ids, "labels": labels}

    def collate(self, samples: list[Any]) -> Any:
        samples.sort(key=len, reverse=True)
        return {name: pad_sequence([one[name] for one in samples]) for name in samples[0]}


def collate(batch: list[Any], padding: int = 0) -> Any:
    batch.sort(key=lambda one: len(one[0]))
    texts, labels = zip(*batch, strict=True)
    lengths = [len(one) for one in texts]
    padded = torch.full((len(texts), max(lengths)), padding)
    for number, text in enumerate(texts):
        padded[number, : lengths[number]] = text
    return padded, torch.stack(labels)


class Windows(Dataset[Any]):
    """Stretches of a long series; asks how many workers there are."""

    def __init__(self) -> None:
        self.series, self.window, self.offset = np.arange(100.0), 8, 0
        self.scale = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.ReLU())
        self.register = torch.nn.Module()
        self.register.register_buffer("window", torch.hann_window(8))

    def __len__(self) -> int:
        info = get_worker_info()
        count = 1 if info is None else info.num_workers
        return len(self.series) // count * count - self.window

    def __getitem__(self, index: int) -> Any:
        start = self.offset
        start += index
        x = torch.as_tensor(self.series[start : start + self.window]).float()
        x = (x - x.mean()) / x.std()
        with torch.no_grad(), io.BytesIO() as buffer:
            buffer.write(b"x")
            return self.scale(x * self.register.window), buffer.getvalue()


class Lookup(Dataset[Any]):
    """A tree of dictionaries and names; the settings are an object."""

    def __init__(self) -> None:
        self.config = type("Config", (), {"sort": True, "resize": 4, "update": None})()
        self.tree = {"train": {"a": [1, 2]}, "val": {"b": [3]}}
        self.split, self.rng, self.noise = "train", random.Random(3), np.ones(2)
        self.client: Any = None

    def __getitem__(self, index: int) -> Any:
        found = [(name, number) for name, all in self.tree[self.split].items() for number in all]
        self.rng.shuffle(found)
        noise = np.zeros(2)
        np.copyto(noise, self.noise)
        if not Path(self.split).exists():
            self.client.download_file("bucket", self.split)
        if self.config.sort:
            found.sort(reverse=True)
        name, number = found[index]
        pairs = sorted(self.tree[self.split].items())
        pairs.append((name, [self.config.resize]))
        result = dict(self.tree)
        result["x"] = {}
        result.pop("val", None)
        return number, len(pairs), self.tree.get(name, {}).get("x", 0), result


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, Any]:
    text = Text()
    plain = [(torch.zeros(2), 1)] * 4
    tensors = TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    return {
        "files": Folder(tmp_path, Compose(Resize(4), np.array)),
        "in memory": InMemory(tmp_path),
        "table": Frame(),
        "hdf5": Hdf5(tmp_path / "x.h5"),
        "detection": Detection(),
        "text": text,
        "method that collates": text.collate,
        "function that collates": collate,
        "windows": Windows(),
        "lookup": Lookup(),
        "list": plain,
        "tensors": tensors,
        "subset": Subset(ConcatDataset([tensors, Frame()]), [0, 2]),
    }


def test_common_datasets_are_seen_to_give_the_same_again(datasets: dict[str, Any]) -> None:
    assert [name for name, one in datasets.items() if may_read_on(one)] == []


def test_common_datasets_do_not_ask_which_worker_they_are_in(datasets: dict[str, Any]) -> None:
    assert [name for name, one in datasets.items() if asks_which_worker(one)] == []


def test_datasets_of_hugging_face_give_the_same_again() -> None:
    hugging_face = pytest.importorskip("datasets")
    rows = hugging_face.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})

    class Tokenized(Dataset[Any]):
        def __init__(self) -> None:
            self.rows, self.tokenizer = rows, str.split

        def __getitem__(self, index: int) -> Any:
            row = self.rows[index]
            row["ids"] = self.tokenizer(row["text"])
            return {"ids": [len(one) for one in row["ids"]], "label": row["label"]}

    assert not may_read_on(rows)
    assert not may_read_on(rows.with_format("torch"))
    assert not may_read_on(Tokenized())
