"""Kernels that can wait: loading begins without them, goes on with them, and gives the same bytes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import rekindle as rk
import warm_python
from rekindle.core import compile_later, compiled_code, compiled_rng
from rekindle.prepare import compiled_units, fused_kernel, resized_crop_units
from rekindle.prepare.compiled_units import CompiledUnits
from rekindle.prepare.steps import (
    antialiased_resize,
    bilinear_rows,
    nearest_warp,
    point_kernels,
    point_operations,
    sharpness_kernel,
)
from waiting import eventually

T = rk.transforms
STEPS = [T.RandomResizedCrop(9), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
KERNELS = [
    (compiled_rng._fill,), (fused_kernel.compile_normalize, True), (fused_kernel.compile_normalize, False),
    (antialiased_resize._sum_bilinear,), (point_kernels.look_up_values,), (point_kernels.equalize_values,),
    (point_kernels.stretch_values,), (nearest_warp.compile_nearest_warp,), (sharpness_kernel.compile_blend,),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_later, "_START_AFTER", 5.0)
    monkeypatch.setattr(compile_later, "_START_SOON_AFTER", 0.5)
    monkeypatch.setattr(compile_later, "_wanted", {})
    monkeypatch.setattr(compile_later, "_asked", set())
    monkeypatch.setattr(compile_later, "_processes", [])
    monkeypatch.setattr(compile_later, "_began", [])
    monkeypatch.setattr(compile_later, "_loaded", {})
    monkeypatch.setattr(compile_later, "_retry_at", {})


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = compiled_rng, fused_kernel, antialiased_resize, point_operations, nearest_warp, sharpness_kernel
    for module in modules:
        monkeypatch.setattr(module, "compiled_or_later", lambda *_, **__: None)
    monkeypatch.setattr(CompiledUnits, "is_ready", lambda _: False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    (root / "class").mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "class" / f"{number}.jpg")
    return root


def test_what_is_not_compiled_is_not_compiled_where_only_loading_is_allowed(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @compiled_code.kernel(lambda: numba.int64(numba.int64))
    def thrice(number):
        return 3 * number

    for _ in range(2):
        with compiled_code.only_loading(), pytest.raises(compiled_code.NotCompiledError):
            thrice()
    assert thrice()(7) == 21
    with compiled_code.only_loading():
        assert thrice()(7) == 21
    assert [*tmp_path.rglob("*.nbi")]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_before_and_after_the_kernels_are_there(folder, monkeypatch, workers):
    def epochs(loader: rk.DataLoader) -> list[bytes]:
        return [images.numpy().tobytes() for _ in range(2) for images, _ in loader]

    def loader() -> rk.DataLoader:
        return rk.DataLoader(rk.open(folder, STEPS), batch_size=5, shuffle=True, seed=3, num_workers=workers)

    ready = loader()
    ready.dataset._pipeline._unit.compile_now()
    with_kernels = epochs(ready)
    with monkeypatch.context() as patch:
        patch.setattr(CompiledUnits, "is_ready", lambda _: False)
        late = loader()
        without = epochs(late)
    ready_now = epochs(loader())
    assert with_kernels == without == ready_now


@settings(max_examples=50, deadline=None)
@given(
    old=st.integers(1, 300), new=st.integers(1, 120), width=st.integers(1, 60), seed=st.integers(0, 2**32 - 1)
)
def test_rows_are_resized_by_numpy_as_by_the_kernel(old, new, width, seed):
    rows = np.random.default_rng(seed).integers(0, 256, (old + 2, 3 * width + 4), dtype=np.uint8)
    expected, found = np.empty((2, new, 3 * width), dtype=np.uint8)
    weights, sums = np.empty(2 * old // new + 5), np.empty(3 * width, dtype=np.uint16)
    antialiased_resize._sum_bilinear()(rows, expected, 1, 2, old, weights, sums)
    bilinear_rows.write(rows, found, 1, 2, old)
    assert np.array_equal(found, expected)


ALL_STEPS = {
    "crop": STEPS,
    "RandAugment": [T.RandomResizedCrop(9), T.RandAugment(4), *STEPS[1:]],
    "pad": [T.RandomCrop(24, padding=3, pad_if_needed=True, fill=9), *STEPS[1:]],
    "resize": [T.Resize((9, 11)), T.RandomEqualize(0.5), T.RandomPosterize(3), *STEPS[2:]],
}


@pytest.mark.parametrize("steps", ALL_STEPS.values(), ids=ALL_STEPS)
@pytest.mark.parametrize("options", [{}, {"channels_last": True}, {"dtype": torch.uint8}], ids=str)
def test_batches_are_the_same_if_nothing_is_compiled(folder, steps, options, request):
    def batches() -> list[bytes]:
        loader = rk.DataLoader(rk.open(folder, steps, **options), batch_size=5, shuffle=True, seed=3)
        return [images.numpy().tobytes() for _ in range(3) for images, _ in loader]

    for kernel, *variant in KERNELS:
        kernel(*variant)
    compiled = batches()
    request.getfixturevalue("nothing_compiled")
    assert batches() == compiled


def test_without_compiled_code_numba_is_not_loaded_and_found_where_numba_keeps_it(folder, tmp_path):
    script = f"""
import sys, rekindle as rk
from pathlib import Path
from rekindle.core import compile_later, compiled_code, compiled_rng
T = rk.transforms
steps = [T.RandomResizedCrop(9), T.RandAugment(), T.ToTensor(), T.Normalize([0.5], [0.2])]
batches = [*rk.DataLoader(rk.open({str(folder)!r}, steps), 5)]
assert "numba" not in sys.modules
assert not compiled_code._may_be_on_disk(Path(compiled_rng.__file__), "_fill")
compiled_rng._fill()
numba = sys.modules.pop("numba")
assert compiled_code._may_be_on_disk(Path(compiled_rng.__file__), "_fill")
sys.modules["numba"] = numba
compile_later._retry_at[compiled_rng._fill, ()] = 0.0
compile_later.load_compiled()
assert (compiled_rng._fill, ()) in compile_later._loaded
"""
    (tmp_path / "compiled").mkdir(mode=0o700)
    ended = warm_python.run("-c", script, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")})
    assert ended.returncode == 0, ended.stderr


def test_a_pipeline_asks_for_its_kernels_and_uses_them_when_they_are_there(folder, monkeypatch):
    there = False

    def not_yet(floats: bool) -> None:
        assert floats
        if not there:
            raise compiled_code.NotCompiledError

    monkeypatch.setattr(resized_crop_units, "compile_kernels", not_yet)
    monkeypatch.setattr(compiled_units, "_LOOK_EVERY", 0.0)
    not_yet.__module__, not_yet.__name__ = "rekindle.prepare.resized_crop_units", "compile_kernels"
    dataset = rk.open(folder, STEPS)
    unit = dataset._pipeline._unit
    state = unit.__getstate__()
    assert not unit.is_ready()
    assert ("rekindle.prepare.resized_crop_units", "compile_kernels", (True,)) in compile_later._wanted
    there = True
    assert unit.is_ready()
    same = [one is other for one, other in zip(state.values(), unit.__getstate__().values(), strict=True)]
    assert all(same)


def test_a_process_is_started_once_and_only_if_loading_goes_on(monkeypatch):
    started: list[str] = []

    class Process:
        returncode: int | None = None

        def poll(self) -> int | None:
            return self.returncode

    process = Process()

    def start(program: str) -> None:
        started.append(program)
        compile_later._processes.append(process)

    monkeypatch.setattr(compile_later, "_start", start)
    assert compile_later.first_look(10.0) == math.inf
    compile_later.compile_later("math", "floor", True)
    assert compile_later.first_look(10.0) == 15.0
    assert compile_later.first_look(12.0) == 15.0  # Epochs of a few seconds are no reason to wait for ever.
    assert compile_later.first_look(17.0) == 17.0
    assert compile_later.look_after(15.5) == 20.5
    compile_later.compile_later("math", "floor", True)
    assert compile_later.look_after(20.5) == 25.5
    process.returncode = 1
    assert compile_later.look_after(25.5) == math.inf
    assert len(started) == 1


def test_the_process_calls_what_was_asked_for_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "compiles_nothing.py").write_text(
        "from pathlib import Path\n"
        "import os\n"
        f"def note(value): Path({str(tmp_path / 'noted')!r}).write_text(f'{{value}} {{os.nice(0)}}')\n"
    )
    compile_later.compile_later("compiles_nothing", "note", True)
    assert compile_later.look_after(1.0) == 6.0
    (process,) = compile_later._processes
    eventually(lambda: compile_later.look_after(6.0) == math.inf)
    assert process.returncode == 0
    assert (tmp_path / "noted").read_text() == "True 19"
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_kernel_that_makes_a_difference_is_compiled_soon_and_before_the_others(monkeypatch):
    started: list[str] = []
    monkeypatch.setattr(compile_later, "_start", started.append)
    compile_later.compile_later("math", "ceil", True)
    compile_later.compile_later("math", "floor", True, soon=True)
    compile_later.compile_later("math", "floor", True)
    assert compile_later.first_look(10.0) == 10.5
    compile_later.look_after(10.6)
    assert 0 < started[0].index("floor") < started[0].index("os.nice(19)") < started[0].index("ceil")


@pytest.mark.parametrize("reason", ["no folder", "frozen"])
def test_what_makes_a_difference_is_compiled_here_if_no_other_process_can(monkeypatch, tmp_path, reason):
    if reason == "frozen":  # into one executable, which is no Python
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(compile_later, "keeps_compiled_code", lambda: False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @compiled_code.kernel(lambda: numba.int64(numba.int64))
    def thrice(number):
        return 3 * number

    assert compile_later.compiled_or_later(thrice) is None
    compile_later._retry_at.clear()
    assert compile_later.compiled_or_later(thrice, soon=True)(7) == 21
    assert compile_later.compiled_or_later(thrice)(7) == 21


def test_without_a_folder_for_compiled_code_no_process_is_started(monkeypatch):
    monkeypatch.setattr(compile_later, "keeps_compiled_code", lambda: False)
    compile_later.compile_later("math", "floor", True)
    assert compile_later.look_after(1.0) == math.inf
    assert not compile_later._processes


def test_the_process_ends_with_the_script_that_started_it(tmp_path):
    (tmp_path / "sleeps.py").write_text("import time\ndef sleep(_): time.sleep(600)\n")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from rekindle.core import compile_later
compile_later.compile_later("sleeps", "sleep", True)
compile_later.look_after(1.0)
print(compile_later._processes[0].pid)
"""
    ended = warm_python.run("-c", script)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    assert not Path(f"/proc/{int(ended.stdout)}").exists()


def test_a_forked_process_does_not_compile_what_another_asked_for():
    compile_later.compile_later("math", "floor", True)
    child = os.fork()
    if not child:
        os._exit(3 if compile_later.first_look(0.0) == math.inf else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert compile_later.first_look(0.0) == 5.0


SCRIPT = """
import sys, time, rekindle as rk
from rekindle.core import compile_later
compile_later._START_AFTER = compile_later._START_SOON_AFTER = 0.0
T = rk.transforms
steps = [T.RandomResizedCrop(9), T.ToTensor()]
dataset = rk.open(sys.argv[1], steps)
unit = dataset._pipeline._unit
before = unit.is_ready()
loader = rk.DataLoader(dataset, batch_size=4, seed=1)
seen = set()
while not unit.is_ready():
    seen |= {images.numpy().tobytes() for images, _ in loader}
    time.sleep(0.1)
batches = {images.numpy().tobytes() for images, _ in rk.DataLoader(dataset, batch_size=4, seed=1)}
print(before, batches <= seen)
"""


@pytest.mark.slow
def test_on_a_new_machine_loading_goes_on_with_what_was_compiled_beside_it(folder, tmp_path):
    (tmp_path / "compiled").mkdir(mode=0o700)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=environment, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert ended.stdout == "False True\n"
