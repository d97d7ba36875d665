"""What is native is decided by type and by whose `__getitem__` it is: nobody's `__getitem__` is bypassed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

import rekindle as rk
from rekindle.prepare.declared import draws_nothing, fingerprint, releases_gil
from rekindle.prepare.native import as_native, device_steps, for_workers
from rekindle.prepare.native_images import own_steps
from rekindle.prepare.native_subset import NativeSubset
from rekindle.reuse.layers import layers_of
from rekindle.tools.rgb_dataset import RgbDataset
from same import same

T = rk.transforms
SAMPLES = 12
PIXELS = np.random.default_rng(0).integers(0, 256, (SAMPLES, 24, 24, 3), dtype=np.uint8)
STEPS = [T.RandomCrop(16), T.RandomHorizontalFlip(), T.ToTensor()]


def arrays(kind: type[rk.ArrayImages] = rk.ArrayImages, **options: Any) -> rk.ArrayImages:
    return kind(PIXELS, range(SAMPLES), STEPS, **options)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "a").mkdir()
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / "a" / f"{number:02}.png")
    return folder


def marked(sample: tuple[Any, int]) -> tuple[Any, int]:
    """The sample as only the overriding `__getitem__` returns it: other sign and label, still random."""
    image, label = sample
    return -1 - torch.as_tensor(image).float(), label + 100


class Wrapper(Dataset[Any]):
    """Forwards all attributes that it does not have to the dataset that it wraps."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return marked(self.inner[index])


class OverridesGetitem(rk.ArrayImages):
    def __getitem__(self, index: int) -> Any:
        return marked(super().__getitem__(index))


class OverridesGetitems(rk.ArrayImages):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [marked(self[index]) for index in indices]


class OverridesSample(rk.ArrayImages):
    def sample(self, index: int, uniforms: Any) -> Any:
        return marked(super().sample(index, uniforms))


class OverridesFolderGetitem(rk.ImageDataset):
    def __getitem__(self, index: int) -> Any:
        return marked(super().__getitem__(index))


class OwnSubset(Subset[Any]):
    def __getitem__(self, index: int) -> Any:
        return marked(super().__getitem__(index))

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class NamedSubset(Subset[Any]):
    """Changes nothing about the samples."""

    name = "validation"


class NamedImages(rk.ArrayImages):
    """Changes nothing about the samples."""

    name = "validation"


OVERRIDING = {
    "wrapper": lambda root: Wrapper(arrays()),
    "wrapper of a subset": lambda root: Wrapper(Subset(arrays(), range(SAMPLES))),
    "subset of a wrapper": lambda root: Subset(Wrapper(arrays()), range(SAMPLES)),
    "wrapper of a folder": lambda root: Wrapper(rk.open(root, STEPS)),
    "__getitem__": lambda root: arrays(OverridesGetitem),
    "__getitem__, device": lambda root: arrays(OverridesGetitem, place="device"),
    "subset of __getitem__": lambda root: Subset(arrays(OverridesGetitem), range(SAMPLES)),
    "__getitem__ of a folder": lambda root: OverridesFolderGetitem(rk.open(root).source, STEPS),
    "__getitems__": lambda root: arrays(OverridesGetitems),
    "sample": lambda root: arrays(OverridesSample),
    "own subset": lambda root: OwnSubset(arrays(), range(SAMPLES)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "inline": {},
    "2 workers": {"num_workers": 2},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "final_transform": {"reuse": rk.Refurbish(2, balance=None), "final_transform": lambda sample: sample},
}


def batches(dataset: Any, epochs: int = 1, **settings: Any) -> list[Any]:
    loader = rk.DataLoader(dataset, batch_size=5, seed=3, **settings)
    try:
        return [[part.clone() for part in batch] for _ in range(epochs) for batch in loader]
    finally:
        loader.close()


# A final_transform is a function of one sample, so samples are then requested one by one.
COMBINED = [
    (name, way)
    for name in OVERRIDING
    for way in SETTINGS
    if (name, way) != ("__getitems__", "final_transform")
]


@pytest.mark.parametrize(("name", "settings"), COMBINED)
def test_an_overriding_getitem_is_called_for_every_sample(name: str, settings: str, root: Path) -> None:
    dataset = OVERRIDING[name](root)
    loaded = batches(dataset, **SETTINGS[settings])
    images = torch.cat([images for images, _ in loaded])
    labels = [label for _, some in loaded for label in some.tolist()]
    assert images.max() <= -1
    assert labels == [100 + (0 if "folder" in name else sample) for sample in range(SAMPLES)]


@pytest.mark.parametrize("name", OVERRIDING)
def test_what_an_overriding_getitem_draws_is_seeded(name: str, root: Path) -> None:
    """The inner `__getitem__` draws from torch's generator: its declarations may not hide that."""
    dataset = OVERRIDING[name](root)
    first = batches(dataset, epochs=2)
    torch.rand(1)
    assert same(batches(dataset, epochs=2), first)
    assert same(batches(dataset, epochs=2, num_workers=2), first)
    assert not same(first[: len(first) // 2], first[len(first) // 2 :])


@pytest.mark.parametrize(
    "settings", [{}, {"num_workers": 2}, {"reuse": rk.Refurbish(2, balance=None)}], ids=repr
)
def test_a_native_dataset_with_a_final_transform_is_seeded(settings: dict[str, Any]) -> None:
    """It is then asked for whole samples, for which it draws random numbers itself."""
    first = batches(arrays(), final_transform=marked, **settings)
    torch.rand(1)
    assert same(batches(arrays(), final_transform=marked, **settings), first)


@pytest.mark.parametrize("name", OVERRIDING)
def test_overriding_datasets_are_not_native(name: str, root: Path) -> None:
    dataset = OVERRIDING[name](root)
    assert as_native(dataset) is None
    assert device_steps(dataset) is None
    assert for_workers(dataset) is dataset
    assert not releases_gil(dataset)
    assert not draws_nothing(dataset)


def test_subclasses_that_leave_samples_alone_are_native() -> None:
    plain, named = arrays(), arrays(NamedImages)
    assert as_native(named) is named
    assert isinstance(as_native(NamedSubset(named, [3, 1])), NativeSubset)
    assert same(batches(named), batches(plain))
    assert same(batches(NamedSubset(named, [3, 1])), batches(Subset(plain, [3, 1])))


def test_steps_on_the_device_are_those_of_the_native_dataset() -> None:
    dataset = arrays(place="device")
    steps = dataset.device_steps
    assert steps is not None
    assert device_steps(dataset) is device_steps(Subset(dataset, [0])) is steps
    workers = for_workers(Subset(dataset, [4, 2]))
    assert device_steps(workers) is None
    assert as_native(workers) is workers
    assert workers[0][0].dtype == torch.uint8


def test_a_subclass_may_declare_of_its_own_getitem_what_the_inherited_one_declared() -> None:
    class Declares(OverridesGetitem):
        releases_gil = True

    assert not releases_gil(arrays(OverridesGetitem))
    assert releases_gil(arrays(Declares))
    assert not draws_nothing(arrays(Declares))
    Declares.draws_nothing = True
    assert rk.DataLoader(arrays(Declares), num_workers=2).report().threads > 1
    assert rk.DataLoader(arrays(OverridesGetitem), num_workers=2).report().threads == 1


def test_any_dataset_may_declare_that_it_releases_the_gil() -> None:
    class InClass(Dataset[int]):
        releases_gil = True

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    class Inherits(InClass):
        def __getitem__(self, index: int) -> int:
            return -index

    class AsProperty(InClass):
        releases_gil = property(lambda self: False)  # type: ignore[assignment]

    class InInstance(Dataset[int]):
        def __init__(self) -> None:
            self.releases_gil = True

    assert releases_gil(InClass())
    assert releases_gil(Inherits())
    assert releases_gil(InInstance())
    assert not releases_gil(AsProperty())
    assert not releases_gil(Wrapper(InClass()))
    assert not releases_gil(range(3))


def test_an_overriding_subclass_does_not_share_a_cache_with_the_class_it_overrides(root: Path) -> None:
    source = rk.open(root).source
    plain, overriding = rk.ImageDataset(source, STEPS), OverridesFolderGetitem(source, STEPS)
    assert fingerprint(plain) == plain.fingerprint
    assert fingerprint(overriding) not in (None, plain.fingerprint)
    assert fingerprint(Wrapper(plain)) is None
    assert fingerprint(range(3)) is None


def test_images_before_transforms_are_those_of_unmodified_datasets_alone() -> None:
    pixels, label = RgbDataset(arrays())[3]
    assert np.array_equal(pixels, PIXELS[3])
    assert label == 3
    for dataset in (arrays(OverridesGetitem), Wrapper(arrays())):
        assert RgbDataset(dataset)[3][1] == 103


def test_a_method_put_into_an_object_or_a_class_later_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = rk.ArrayImages(PIXELS, range(SAMPLES), STEPS)
    loader = rk.DataLoader(Subset(dataset, [1, 2]), batch_size=2)
    assert as_native(dataset) is not None
    list(loader)
    given = dataset.sample
    dataset.sample = lambda index, uniforms: marked(given(index, uniforms))  # type: ignore[method-assign]
    assert as_native(dataset) is None
    del dataset.sample
    inherited = rk.ArrayImages.__getitem__
    monkeypatch.setattr(rk.ArrayImages, "__getitem__", lambda self, index: marked(inherited(self, index)))
    assert as_native(dataset) is None
    assert next(iter(loader))[1].tolist() == [dataset[1][1], dataset[2][1]] != [1, 2]


def test_a_split_keeps_the_class_whose_getitem_is_overridden(root: Path) -> None:
    dataset = OverridesFolderGetitem(rk.open(root).source, T.Compose(STEPS))
    with pytest.raises(rk.ArgumentError, match="OverridesFolderGetitem uses what its transform returns"):
        batches(dataset, reuse=rk.Refurbish(2, split=1, balance=None))
    assert type(dataset.with_transform(None)) is OverridesFolderGetitem


class PaintsOver(rk.ImageDataset):
    """A corner is painted over after all steps."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        image[:4, :4] = 7
        return image, label


class Relabels(rk.ImageDataset):
    """Only the label is changed after all steps."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label + 100


def test_what_an_overridden_getitem_does_after_the_steps_is_never_done_before_them(root: Path) -> None:
    source, steps = rk.open(root).source, T.Compose([T.CenterCrop(20), T.RandomHorizontalFlip(1.0)])
    reuse = rk.Refurbish(2, split=1, balance=None)
    with pytest.raises(rk.ArgumentError, match="PaintsOver uses what its transform returns"):
        batches(PaintsOver(source, steps), reuse=reuse)
    dataset = Relabels(source, steps)
    images, labels = next(iter(rk.DataLoader(dataset, batch_size=3, seed=1, reuse=reuse)))
    assert same([images.numpy(), labels.tolist()], [np.stack([dataset[i][0] for i in range(3)]), [100] * 3])


def test_own_steps_are_recognised_by_their_class() -> None:
    class Negative(T.Step):
        def apply(self, image: Any, uniforms: Any) -> Any:
            return 255 - image

    class Impostor:
        def __call__(self, image: Any) -> Any:
            return image

    Impostor.__module__ = "rekindle.prepare.steps.step"
    assert own_steps(None) == []
    assert own_steps(Negative()) is not None
    assert own_steps(Impostor()) is None
    assert own_steps(len) is None
    dataset = rk.ArrayImages(PIXELS, range(SAMPLES), Negative())
    assert as_native(dataset) is dataset
    assert np.array_equal(dataset[2][0], 255 - PIXELS[2])


def test_a_split_point_counts_the_steps_of_the_pipeline() -> None:
    """RandomApply is one step, whatever it contains; the steps of a Compose are several."""
    blur, flip = T.GaussianBlur(3), T.RandomHorizontalFlip()
    steps = [T.Compose([T.RandomCrop(16), T.RandomApply([blur, flip])]), T.RandAugment(2), T.ToTensor()]
    dataset = rk.ArrayImages(PIXELS, range(SAMPLES), steps)
    layers = layers_of(dataset)
    names = ["RandomCrop", "RandomApply", "RandAugment", "RandAugment[1]", "ToTensor"]
    assert [str(layer) for layer in layers] == names
    for split_point in range(len(layers) + 1):
        first, rest = dataset.split(split_point)
        assert repr([*first.steps, *rest.steps]) == repr([layer.step for layer in layers])
