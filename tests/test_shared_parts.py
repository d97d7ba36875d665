"""Long lists and large arrays of a dataset are shared by all workers, and its code cannot tell."""

import functools
import operator
import types
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Dataset, Subset

import rekindle as rk
from rekindle.core.analysis.attribute_uses import may_reach_any_attribute, used_otherwise
from rekindle.core.long_lists import long_lists
from rekindle.run.private_arrays import ArrayFile, private_array


class Uses:
    """What may be done to `x`, and what may not."""

    def item(self, i):
        return self.x[i], self.x[-1], self.x[1:i], self.other.x[self.order[int(i)] % len(self.order)]["a"]

    def length(self):
        return len(self.x) + len(self.other.x)

    def tests(self):
        return [a for a in self.x if a] if self.x and 3 in self.x else None

    def replaced(self):
        self.x = []


class MoreUses:
    def variable(self):
        x = self.x
        return x[0]

    def returned(self):
        return self.x

    def method(self):
        self.x.append(1)

    def argument(self):
        return sorted(self.x), len(self.x, self.x)

    def stored(self):
        self.x[0] = 1

    def increased(self):
        self.x[0] += 1

    def deleted(self):
        del self.x[0]

    def inner(self):
        return lambda: self.x

    def compared(self):
        return self.x == [1]

    def added(self):
        return self.x + [1]  # noqa: RUF005

    def unpacked(self):
        return [*self.x]

    def as_index(self):
        return self.y[self.x]

    def undecided(self, i):
        return self.x[0 if i else 1]


@pytest.mark.parametrize("name", [name for name in vars(Uses) if not name.startswith("__")])
def test_reading_items_is_proven(name):
    assert used_otherwise(vars(Uses)[name], ["x"]) == set()


@pytest.mark.parametrize("name", [name for name in vars(MoreUses) if not name.startswith("__")])
def test_any_other_use_is_not_proven(name):
    assert used_otherwise(vars(MoreUses)[name], ["x"]) == {"x"}


def test_code_that_may_use_any_attribute_is_recognised():
    assert may_reach_any_attribute((lambda self, name: lambda: getattr(self, name)).__code__)
    assert not may_reach_any_attribute((lambda self: self.x).__code__)


class Files(Dataset):
    def __init__(self, items, array=None):
        self.items = self.alias = items
        self.array = array

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return len(self.items[index]), 0 if self.array is None else float(self.array[index])


class Escaping(Files):
    def __getitem__(self, index):
        return max(len(self.items), index)

    def give(self):
        return self.items


SHORT = 10
NAMES = [f"folder/{number}" for number in range(SHORT)]


def test_lists_are_found_through_wrappers_and_under_all_their_names():
    files = Files([*NAMES])
    found = long_lists(Subset(files, range(3)), least=SHORT)
    assert [entry.values for entry in found.proven] == [NAMES]
    assert {name for _, name in found.proven[0].owners} == {"items", "alias"}


def test_torchvisions_folder_is_proven(tmp_path):
    from light_torchvision import torchvision

    ImageFolder = torchvision.datasets.ImageFolder  # noqa: N806
    (tmp_path / "class").mkdir()
    for name in NAMES:
        (tmp_path / "class" / f"{name[-1]}.png").touch()
    found = long_lists(ImageFolder(tmp_path), least=SHORT)
    assert {name for entry in found.proven for _, name in entry.owners} == {"samples", "imgs", "targets"}


ELSEWHERE = [*NAMES]


GET_ITEMS, GET, IS_SAME, FOUND = operator.attrgetter("items"), getattr, operator.is_, {}
MISSING = NAMES[0]


class Memo(Files):
    @functools.lru_cache  # noqa: B019
    def known(self):
        return frozenset(self.items)


class Unpickled(Files):
    def __setstate__(self, state):
        self.items = state["items"]


class Compiled:
    __code__ = None  # as the functions of Cython have one

    def __call__(self, batch):
        return batch


def by_pattern(dataset):
    match dataset:
        case Files(items=found):
            return isinstance(found, list)


def importing_later(batch):
    import not_loaded_yet

    return not_loaded_yet.collate(batch)


def importing_of_libraries(batch):
    import this

    import numpy.polynomial

    import rekindle.tools.cli

    return this, numpy, rekindle, batch if batch is not None and type(batch) is list else ()


def test_code_that_asks_for_no_element_is_proven():
    assert long_lists(Files([*NAMES]), importing_of_libraries, least=SHORT).proven


def reading_a_global(batch):
    return ELSEWHERE[0], batch


@pytest.mark.parametrize(
    ("roots", "why"),
    [
        ((Escaping([*NAMES]),), "Escaping.give uses it otherwise"),
        ((Files([*NAMES]), lambda batch, dataset: dataset.items.sort()), "uses it otherwise"),
        ((Files(ELSEWHERE), reading_a_global), "reached otherwise than through attributes"),
        ((Files([*NAMES]), lambda batch: getattr(batch, str(batch))), "may use any attribute"),
        ((Files([*NAMES]), lambda batch: GET_ITEMS(batch)), "may be used for any attribute"),
        ((Files([*NAMES]), lambda batch: GET(batch, "items")), "may be used for any attribute"),
        ((Files([*NAMES]), lambda batch: FOUND.get(id(batch[0]))), "may ask which object"),
        ((Files([*NAMES]), lambda batch: [one is MISSING for one in batch]), "may ask which object"),
        ((Files([*NAMES]), lambda batch: filter(IS_SAME, batch)), "may be used for any attribute"),
        ((Files([*NAMES]), importing_later), "imports not_loaded_yet, which is not loaded yet"),
        ((Files([*NAMES]), by_pattern), "may use any attribute"),
        ((Files([*NAMES]), functools.lru_cache(lambda dataset: sorted(dataset.items))), "uses it otherwise"),
        ((Memo([*NAMES]),), "uses it otherwise"),
        ((Unpickled([*NAMES]),), "has a __setstate__"),
        ((Files([*NAMES]), Compiled()), "compiled code"),
        ((hidden := Files([*NAMES]), types.MappingProxyType({"a": hidden.items})), "reached otherwise"),
    ],
)
def test_a_list_is_left_alone_if_its_uses_are_not_proven(roots, why):
    found = long_lists(*roots, least=SHORT)
    assert not found.proven
    assert why in found.unproven[0]


def test_lists_of_other_objects_are_no_lists_of_ours():
    found = long_lists(Files([np.ones(1)] * SHORT), least=SHORT)
    assert found == ([], [])


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_comes_through_a_file_as_through_pickle(order):
    array = np.asarray(np.arange(3 << 18).reshape(3, -1), order=order)
    copied, file = array.copy(order="K"), ArrayFile()
    make, arguments = file.reduce(array)
    assert make is private_array
    here, there = (private_array(file.fd, *arguments[1:]) for _ in range(2))
    for found in (array, here, there):
        assert found.dtype == copied.dtype
        assert found.flags.f_contiguous == copied.flags.f_contiguous
        assert np.array_equal(found, copied)
    array[:], here[1] = -1, -2
    assert np.array_equal(there, copied)
    assert np.array_equal(here[::2], copied[::2])
    assert (here[1] == -2).all()
    assert (array == -1).all()


def test_the_main_process_keeps_the_pages_of_its_array():
    array, file = np.ones(40 << 20, dtype=np.uint8), ArrayFile()
    file.reduce(array)
    backed = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line]
    for line in backed:
        first, last = (int(address, 16) for address in line.split()[0].split("-"))
        assert not first < array.ctypes.data + array.nbytes // 2 < last, (
            "an allocator that gives these pages back, as jemalloc does, would find the file's bytes in them"
        )


COUNT, NUMBERS = 120_000, 16 << 20


def memory():
    """The bytes that this process has for itself."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = {name: int(size) for name, size, unit in map(str.split, lines[1:])}
    return 1024 * (fields["Private_Dirty:"] + fields["Private_Clean:"])


class Measuring(Files):
    """Samples that say how much memory the worker has to itself, and of which class `items` is."""

    def __getitem__(self, index):
        total = sum(len(item[0]) + item[1] for item in self.items) + float(self.array.sum())
        self.array[0] += 1  # This is the worker's own array, and `total` never gets to know it.
        return total + 0 * index, memory(), hasattr(self, "array")


def measured(method, shared, monkeypatch):
    monkeypatch.setenv("REKINDLE_SHARE_DATASET", "1" if shared else "0")
    items = [(f"a/folder/of/files/with/long/names/{number:08}.jpg", 1) for number in range(COUNT)]
    dataset = Measuring(items, np.ones(NUMBERS, dtype=np.float32))
    loader = rk.DataLoader(
        dataset, sampler=[0, 1], num_workers=1, persistent_workers=True, multiprocessing_context=method
    )
    totals, sizes = zip(*((float(total), int(size)) for total, size, _ in loader), strict=True)
    assert (dataset.array == 1).all()
    assert type(dataset.items) is list
    return totals, max(sizes)


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_a_worker_has_no_copy_of_the_list_and_the_array(method, monkeypatch):
    totals, size = measured(method, True, monkeypatch)
    expected, copied = measured(method, False, monkeypatch)
    assert totals == expected
    of_list = COUNT * 150  # bytes of objects
    of_array = 0 if method == "fork" else 4 * NUMBERS
    assert copied - size > 0.4 * of_list + 0.9 * of_array


class Unproven(Files):
    """A dataset whose list cannot be shared."""

    def __getitem__(self, index):
        items = self.items
        return len(items[index]), memory()


def test_a_worker_copies_no_more_of_a_list_that_is_not_shared_than_its_samples_read():
    def size(count):
        items = [(f"a/folder/of/files/with/long/names/{number:08}.jpg", number) for number in range(count)]
        loader = rk.DataLoader(
            Unproven(items),
            sampler=range(10),
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        return max(int(size) for _, sizes in loader for size in sizes)

    assert size(COUNT) - size(10) < 0.25 * COUNT * 150


class Changing(Files):
    """A dataset that keeps something in its elements."""

    def __getitem__(self, index):
        record = self.items[index]
        record["seen"] = record.get("seen", 0) + 1
        return record["seen"], type(record) is dict, index


def test_what_a_worker_changes_in_an_element_stays_changed():
    dataset = Changing([{"name": name} for name in NAMES * 5000])
    loader = rk.DataLoader(dataset, sampler=[3, 4, 3, 3], num_workers=1, persistent_workers=True)
    seen = [[int(count) for count, *_ in loader] for _ in range(2)]
    assert seen == [[1, 1, 2, 3], [4, 2, 5, 6]]
    assert dataset.items[3] == {"name": NAMES[3]}
