"""Every parser on bytes that were changed at random: a few times, and for a minute with atheris (`slow`)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuzz.targets import TARGETS

MUTATIONS = 50
BYTES = (0, 1, 0x20, 0x22, 0x2D, 0x39, 0x5B, 0x7F, 0x80, 0xFF)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes after up to four changes: others in place of some, some left out, or repeated."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        start = int(rng.integers(len(out) + 1))
        end = start + int(rng.integers(1, 9))
        match int(rng.integers(4)):
            case 0:
                out[start:end] = bytes([BYTES[rng.integers(len(BYTES))]]) * len(out[start:end])
            case 1:
                out[start:end] = rng.bytes(len(out[start:end]))
            case 2:
                del out[start:end]
            case _:
                out[start:start] = out[start:end]
    return bytes(out)


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_changed_inputs_are_read_or_refused(name: str) -> None:
    check, seeds = TARGETS[name].check, TARGETS[name].seeds()
    rng = np.random.default_rng(0)
    for seed in seeds:
        check(seed)
    for number in range(MUTATIONS):
        check(mutated(seeds[number % len(seeds)], rng))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs atheris: pip install 'rekindle[fuzz]'"
)
@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_reach_new_code_are_read_or_refused(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz", name, "-max_total_time=60", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    inputs = [path.read_bytes()[:4000] for path in tmp_path.iterdir()]
    assert done.returncode == 0, f"{inputs}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
