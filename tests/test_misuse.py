"""Mistakes that are easily made are answered at once, with what to do instead."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

import rekindle as rk
import warm_python
from rekindle.core.available_memory import available_memory
from rekindle.errors import ArgumentError, OpenFilesError, UnequalSamplesError
from rekindle.reuse.cache.memory_budget import checked_memory
from rekindle.run import slots
from waiting import eventually

# Workers that are not forked.

SCRIPT = textwrap.dedent(
    """
    import torch, rekindle as rk
    class Own(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, index): return index
    {guard}
        Within = type("Within", (Own,), {{}})
        print(list(rk.DataLoader({dataset}(), num_workers=1, multiprocessing_context="spawn")))
    """
)


def test_a_class_of_a_session_is_named_before_any_worker_starts() -> None:
    done = warm_python.run("-", text=SCRIPT.format(guard="if True:", dataset="Own"))
    assert "WorkerError: __main__.Own is defined in a notebook or an interactive session" in done.stderr
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize(
    ("guard", "dataset", "message"),
    [
        ("if True:", "Own", "starts workers when it is imported"),
        ("if __name__ == '__main__':", "Within", "cannot unpickle the dataset __main__.Within"),
    ],
)
@pytest.mark.slow
def test_a_script_that_workers_cannot_import_fails_with_its_first_worker(
    tmp_path: Path, guard: str, dataset: str, message: str
) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(guard=guard, dataset=dataset))
    done = warm_python.run(path)
    assert message in done.stderr
    assert done.returncode != 0
    assert "and so did the two before it" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_stopped_worker_dies_with_its_parent() -> None:
    script = (
        "import rekindle as rk\nfor _ in rk.DataLoader(range(10**6), num_workers=2): print(1, flush=True)"
    )
    with warm_python.started("-c", script) as parent:
        parent.stdout.readline()
        workers = psutil.Process(parent.pid).children()
        os.kill(workers[0].pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
    eventually(lambda: not any(worker.is_running() for worker in workers))


# Arguments.


def test_a_number_of_workers_is_a_number() -> None:
    with pytest.raises(ArgumentError, match=r"num_workers is 'two'\. Give an integer"):
        rk.DataLoader(range(4), num_workers="two")  # type: ignore[arg-type]
    assert len(list(rk.DataLoader(range(4), num_workers=np.int64(0)))) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dataset",
    [None, 42, Dataset, iter([0, 1]), torch.utils.data.DataLoader([0, 1])],  # type: ignore[arg-type,var-annotated]
    ids=["nothing", "number", "class", "iterator", "loader"],
)
def test_what_has_no_samples_is_refused_at_construction(dataset: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^dataset is .*which has no samples\. Give .* with __getitem__"):
        rk.DataLoader(dataset)


@pytest.mark.parametrize("path", ["train", Path("train")])
def test_a_path_in_place_of_a_dataset_is_answered_with_what_reads_it(path: Any) -> None:
    with pytest.raises(ArgumentError, match=r"'train'.*, a path .*rekindle\.open\(path"):
        rk.DataLoader(path)


@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_what_is_no_function_is_refused_at_construction(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^{name} is 'pad'\. Give a function"):
        rk.DataLoader(range(4), **{name: "pad"})  # type: ignore[arg-type]


def test_a_public_name_that_is_misspelt_is_answered_with_the_right_one() -> None:
    with pytest.raises(
        AttributeError, match=r"'rekindle' has no attribute 'Dataloader'\. Did you mean DataLoader\?"
    ):
        rk.Dataloader  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'rekindle' has no attribute 'qwertz'$"):
        rk.qwertz  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("step", [rk.transforms.MixUp(num_classes=2), rk.transforms.CutMix()])
def test_a_step_for_batches_among_those_for_images_is_answered_with_where_it_goes(step: Any) -> None:
    with pytest.raises(ArgumentError, match=r"mixes a batch.*batch_transform="):
        rk.ArrayImages(np.zeros((2, 8, 8, 3), np.uint8), [0, 1], [rk.transforms.ToTensor(), step])


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [("4GB", 4 * 10**9), ("512 MiB", 512 << 20), ("1.5kb", 1500), ("7", 7), (0, 0), ("auto", None)],
)
def test_memory_is_given_in_bytes_or_with_a_unit(given: Any, nbytes: int | None) -> None:
    assert checked_memory(given) == nbytes


@pytest.mark.parametrize("given", ["four GB", "-1GB", -1, 2.5, True, "4 PB", ""])
def test_memory_that_means_nothing_is_refused_at_construction(given: Any) -> None:
    for make in (
        lambda: rk.Refurbish(memory=given),
        lambda: rk.Echo(memory=given),
        lambda: rk.DataLoader(range(4), reuse=rk.Echo(2), memory=given),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError, match="give a number of bytes, a size such as '4GB'"):
            make()


def test_memory_without_anything_to_reuse_is_refused() -> None:
    with pytest.raises(ArgumentError, match="reuse is None"):
        rk.DataLoader(range(4), memory="1GB")  # type: ignore[arg-type]


# Samples.


class Unequal(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.zeros(3, 4, 4 + index // 2), "label": index}


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 1}, {"num_workers": 1, "executor": "threads"}])
def test_images_of_unequal_size_are_answered_with_what_to_add(arguments: Any) -> None:
    with pytest.raises(
        UnequalSamplesError, match=r"at 'image': \(3, 4, 4\) first, \(3, 4, 5\) in row 2"
    ) as caught:
        list(rk.DataLoader(Unequal(), batch_size=4, **arguments))
    assert isinstance(caught.value, RuntimeError)
    assert "Resize((224, 224))" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([0, 1, None], "row 2 of the batch is None, .*on_error='skip'"),
        ([None, 1], "row 0 of the batch is None"),
        ([(0, 1), (0, None)], "row 1 of the batch has None at 1, "),
        ([{"boxes": [0, None]}], "row 0 of the batch has None at 'boxes', 1, "),
        ([{"a": 1, "b": 2}, {"a": 1}], "row 1 of the batch has no 'b', .*the same keys"),
    ],
)
def test_a_sample_that_cannot_be_stacked_is_named(samples: list[Any], words: str, workers: int) -> None:
    with pytest.raises((TypeError, RuntimeError, KeyError)) as torchs:
        list(torch.utils.data.DataLoader(samples, batch_size=3))  # type: ignore[arg-type]
    with pytest.raises(torchs.type) as caught:
        list(rk.DataLoader(samples, batch_size=3, num_workers=workers))  # type: ignore[arg-type]
    assert re.search(words, " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])]))


@pytest.mark.parametrize("shape", [(), (5,)], ids=["rows", "tables"])
def test_sequences_of_unequal_length_are_answered_with_padding(shape: tuple[int, ...]) -> None:
    samples = [torch.zeros(3, *shape), torch.zeros(4, *shape)]
    with pytest.raises(UnequalSamplesError, match=r"\(4,.* in row 1.*collate_fn= that pads") as caught:
        list(rk.DataLoader(samples, batch_size=2))  # type: ignore[arg-type]
    assert "Resize" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([[7, 8, 9], [7, 8]], "differ in length: 3 first, 2 in row 1"),
        ([([7, 8], 0), ([7, 8], 0), ([7, 8, 9], 1)], "differ in length: 2 first, 3 in row 2"),
        ([{"ids": [7, 8, 9]}, {"ids": []}], "differ in length at 'ids': 3 first, 0 in row 1"),
    ],
)
def test_lists_of_unequal_length_are_answered_with_padding(
    samples: list[Any], words: str, workers: int
) -> None:
    with pytest.raises(UnequalSamplesError, match=rf"{words}, .*collate_fn= that pads"):
        list(rk.DataLoader(samples, batch_size=3, num_workers=workers))  # type: ignore[arg-type]


def test_a_transform_that_is_not_there_is_answered_with_what_is() -> None:
    words = "no RandomPerspective in .*Lambda.* Compose of torchvision's as transform=: .* no step is native"
    with pytest.raises(AttributeError, match=words):
        rk.transforms.RandomPerspective  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"no attribute 'RandomResizedcrop'\. Did you mean RandomResizedCrop"
    ):
        rk.transforms.RandomResizedcrop  # type: ignore[attr-defined]  # noqa: B018


def test_labels_that_cannot_be_mixed_are_named_by_their_type() -> None:
    samples = [(torch.zeros(3, 4, 4), name) for name in ("cat", "dog")]
    loader = rk.DataLoader(samples, batch_size=2, batch_transform=rk.transforms.MixUp(num_classes=2))  # type: ignore[arg-type,var-annotated]
    with pytest.raises(ArgumentError, match=r"the batch is a list of Tensor, tuple\. "):
        next(iter(loader))


# Limits of the process.


@pytest.mark.parametrize(
    ("state", "words"), [({}, "a dictionary with no keys"), ("loader.pt", "with torch.load() first")]
)
def test_what_is_no_state_is_answered_with_what_to_give(state: object, words: str) -> None:
    with pytest.raises(rk.StateError, match=re.escape(words)):
        rk.DataLoader(range(4)).load_state_dict(state)  # type: ignore[arg-type]


def test_images_in_memory_say_what_they_are() -> None:
    data = rk.ArrayImages(np.zeros((20, 40, 40, 3), np.uint8), list(range(20)))
    assert repr(data) == "ArrayImages(20 images of 40 × 40 × 3, transform=None)"


def test_too_many_open_files_are_not_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
        with pytest.raises(OpenFilesError, match="ulimit -n"):
            held = [slots.Slot(number, 4096) for number in range(40)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    del held


def test_memory_that_may_not_be_addressed_is_not_available() -> None:
    script = textwrap.dedent(
        """
        import re, resource, numpy as np, rekindle as rk
        from rekindle.core.available_memory import available_memory
        size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30),) * 2)
        assert available_memory() <= 1 << 30
        T = rk.transforms
        steps = [T.RandomCrop(32), T.ToTensor()]
        data = rk.ArrayImages(np.zeros((20, 40, 40, 3), np.uint8), list(range(20)), steps)
        loader = rk.DataLoader(data, batch_size=10, reuse=rk.Refurbish(3, split=0, balance=None))
        print(len(list(loader)))
        """
    )
    done = warm_python.run("-", text=script)
    assert done.stdout == "2\n", done.stderr
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert not unlimited or available_memory() is not None


@pytest.mark.parametrize(
    "first", [rk.transforms.RandomErasing(), rk.transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
)
@pytest.mark.parametrize("then", [rk.transforms.RandomCrop(8), rk.transforms.ToTensor()])
def test_a_step_on_tensors_before_one_on_images_is_refused_at_construction(first: Any, then: Any) -> None:
    message = rf"{type(first).__name__} works on tensors and comes before {type(then).__name__}.*[Pp]ut "
    with pytest.raises(ArgumentError, match=message):
        rk.ArrayImages(np.zeros((2, 8, 8, 3), np.uint8), [0, 1], [first, then])


def test_steps_on_tensors_alone_or_after_a_function_are_not_refused() -> None:
    erase, floats = rk.transforms.RandomErasing(), rk.transforms.ConvertImageDtype(torch.float32)
    assert rk.transforms.Compose([erase, floats])(torch.zeros(3, 8, 8)).shape == (3, 8, 8)
    as_image = rk.transforms.Lambda(lambda image: np.zeros((8, 8, 3), np.uint8))
    assert rk.transforms.Compose([erase, as_image, rk.transforms.ToTensor()])(torch.zeros(3, 8, 8)).sum() == 0


def test_a_final_transform_of_image_and_label_is_refused_at_construction() -> None:
    with pytest.raises(ArgumentError, match=r"one argument.*the whole sample.*image, label = sample"):
        rk.DataLoader(range(4), final_transform=lambda image, label: (image, label))  # type: ignore[misc]


@pytest.mark.parametrize(
    "finish",
    [lambda sample: sample, lambda *parts: parts[0], lambda sample, size=8: sample, torch.nn.Identity(), int],
)
def test_a_final_transform_of_one_sample_is_taken(finish: Any) -> None:
    assert len(list(rk.DataLoader(range(4), final_transform=finish))) == 4


def test_a_distributed_sampler_whose_ranks_have_no_seed_in_common_is_named() -> None:
    sampler = torch.utils.data.DistributedSampler(range(8), num_replicas=2, rank=0)  # type: ignore[arg-type,var-annotated]
    with pytest.raises(ArgumentError, match=r"DistributedSampler.*rank 0 of 2.*without seed="):
        rk.DataLoader(range(8), sampler=sampler, importance=rk.RandomSubset(0.5))
    with pytest.raises(ArgumentError, match=r"^shard=\(0, 2\) without seed="):
        rk.DataLoader(range(8), shard=(0, 2))


@pytest.mark.parametrize(
    ("method", "shard", "samples"),
    [(rk.InfoBatch(epochs=3), None, 63), (rk.RandomSubset(0.5), (0, 2), 127 - 1)],
    ids=["one process", "a rank's share"],
)
def test_importance_without_a_batch_to_report_on_is_refused_at_construction(
    method: Any, shard: Any, samples: int
) -> None:
    def loader(samples: int) -> Any:
        return rk.DataLoader(range(samples), 64, drop_last=True, importance=method, shard=shard, seed=0)

    with pytest.raises(
        ArgumentError, match=r"no batch in an epoch of 63 .*drop_last=True.*smaller batch_size"
    ):
        loader(samples)
    assert len(loader(samples + 2)) >= 0


def test_ranks_that_are_not_set_are_said_to_be_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ArgumentError, match=r"from RANK, which is not set, and WORLD_SIZE, which is 'two'\."):
        rk.DataLoader(range(8), shard="ranks")


def test_a_disk_cache_that_is_no_folder_is_refused_at_construction(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ArgumentError, match=r"^Refurbish: disk is .*cache'.*no folder"):
        rk.Refurbish(disk=tmp_path / "cache")


@pytest.mark.parametrize("argument", ["batch_size", "prefetch_factor"])
def test_a_number_given_as_text_is_shown_as_text(argument: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^{argument} is '4'\. Give an integer"):
        rk.DataLoader(range(4), num_workers=1, **{argument: "4"})  # type: ignore[arg-type]


def test_channels_first_images_are_answered_with_how_to_move_the_channels() -> None:
    with pytest.raises(ArgumentError, match=r"\(2, 3, 8, 8\).*transpose\(0, 2, 3, 1\)"):
        rk.ArrayImages(np.zeros((2, 3, 8, 8), np.uint8), [0, 1], [])
