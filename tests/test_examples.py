"""Every script in `examples/` does what its first lines say: it is run as it is, on a little data."""

import csv
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import runpy
import socket
import subprocess
import sys
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import light_torchvision  # noqa: F401 - Lightning and timm import torchvision
import warm_python

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a script in this process, which has imported all that it needs, and gives what it prints."""
    monkeypatch.chdir(tmp_path)

    def run_script(name, *arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_script


@pytest.fixture
def run_forked(tmp_path):
    """Runs a script in forks of this process, one a rank, as it brings libraries; gives what they print."""

    def play(name, arguments, environment, output):
        os.chdir(tmp_path)
        os.environ.update(environment)
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        warnings.resetwarnings()
        sys.argv = [name, *map(str, arguments)]
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    def run_script(name, *arguments, ranks=({},)):
        fork = multiprocessing.get_context("fork")
        outputs = [tmp_path / f"output of rank {rank}" for rank in range(len(ranks))]
        processes = [
            fork.Process(target=play, args=(name, arguments, environment, output))
            for environment, output in zip(ranks, outputs, strict=True)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        printed = [output.read_text() for output in outputs]
        assert [process.exitcode for process in processes] == [0] * len(ranks), printed[0][-4000:]
        return "".join(printed)

    return run_script


@pytest.fixture
def run_ranks(tmp_path):
    """Runs a script in processes of their own, one a rank; gives what they print."""

    def run_script(name, *arguments, ranks):
        with ExitStack() as running:
            scripts = [
                running.enter_context(
                    warm_python.started(
                        EXAMPLES / name, *arguments, env={**os.environ, **environment}, cwd=tmp_path
                    )
                )
                for environment in ranks
            ]
            printed = [script.communicate() for script in scripts]
            assert [script.returncode for script in scripts] == [0] * len(ranks), printed[0][1][-4000:]
        return "".join(out + err for out, err in printed)

    return run_script


@pytest.fixture
def run_alone(tmp_path):
    """Runs a script as from a shell, in a process of its own; gives what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent / "start"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(tmp_path / "hugging face"),
        "HF_HUB_OFFLINE": "1",
    }

    def run_script(name, *arguments, start=()):
        command = [sys.executable, *start, str(EXAMPLES / name), *map(str, arguments)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout

    return run_script


def losses(printed):
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed)]


def paint(number, label, size):
    """A noisy image whose colour tells its class."""
    noise = np.random.default_rng(number).integers(0, 120, (*size, 3), dtype=np.uint8)
    noise[..., label] += 120
    return noise


@pytest.fixture
def folder(tmp_path):
    """Forty-eight photographs of two classes."""
    for number in range(48):
        name = ("cat", "dog")[number % 2]
        (tmp_path / "train" / name).mkdir(parents=True, exist_ok=True)
        pixels = paint(number, number % 2, (70 + number, 90))
        Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.jpg")
    return tmp_path / "train"


def test_image_folder(run, folder):
    printed = run("image_folder.py", folder, "--batch-size", 8)
    found = losses(printed)
    assert len(found) == 4
    assert found[-1] < 0.7 * found[0]
    assert "diversity 0.96" in printed


def test_image_folder_resumes(run, folder):
    whole = run("image_folder.py", folder, "--batch-size", 8, "--epochs", 2, "--checkpoint", "whole.pt")
    first = run("image_folder.py", folder, "--batch-size", 8, "--epochs", 1)
    rest = run("image_folder.py", folder, "--batch-size", 8, "--epochs", 2)
    assert losses(first) + losses(rest) == losses(whole)


def test_cifar10(run, tmp_path):
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for name, start in (("data_batch_1", 0), ("data_batch_2", 200), ("test_batch", 400)):
        labels = [number % 3 for number in range(start, start + 200)]
        images = [paint(start + row, label, (32, 32)) for row, label in enumerate(labels)]
        data = np.stack([image.transpose(2, 0, 1).ravel() for image in images])
        content = {b"batch_label": name.encode(), b"data": data, b"labels": labels}
        (batches / name).write_bytes(pickle.dumps(content))
    printed = run("cifar10.py", "--epochs", 3, "--batch-size", 20)
    accuracies = [float(one) for one in re.findall(r"accuracy (\d\.\d+)", printed)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.9
    assert "InfoBatch" in printed


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@contextmanager
def ranks_together(world):
    """The environments that torchrun gives to the ranks of a host."""
    with socket.socket() as meeting:  # It keeps the port for rank 0, as it does not listen itself.
        meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        meeting.bind(("127.0.0.1", 0))
        port = str(meeting.getsockname()[1])
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
        yield [{**shared, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(world)]


def test_ddp(run_ranks):
    """With the environment that torchrun gives; the slow test below has torchrun itself."""
    with ranks_together(2) as ranks:
        printed = run_ranks("ddp.py", ranks=ranks)
    assert re.findall(r"(\d+) samples", printed) == ["1000"] * 3
    assert losses(printed)[-1] < 0.5 * losses(printed)[0]


def check_goes_on_with_one_rank(begun, rest):
    assert re.findall(r"2 ranks: (\d+) samples", begun) == ["2400", "600"]
    assert re.findall(r"1 ranks: (\d+) samples", rest) == ["1800", "2400"]
    assert losses(rest)[-1] < 0.7 * losses(begun)[0]


def test_another_number_of_ranks_goes_on(run_ranks):
    """With the environment that torchrun gives; the slow test below has torchrun itself."""
    with ranks_together(2) as ranks:
        begun = run_ranks("torchrun.py", "--stop-after", 25, ranks=ranks)
    with ranks_together(1) as ranks:
        rest = run_ranks("torchrun.py", ranks=ranks)
    check_goes_on_with_one_rank(begun, rest)


@pytest.mark.slow
def test_torchrun_goes_on_with_another_number_of_processes(run_alone):
    begun = run_alone("torchrun.py", "--stop-after", 25, start=TORCHRUN)
    rest = run_alone("torchrun.py", start=[*TORCHRUN[:-1], "--nproc-per-node=1"])
    check_goes_on_with_one_rank(begun, rest)


@pytest.mark.slow
def test_ddp_resumes_in_the_middle_of_an_epoch(run_alone):
    torchrun = TORCHRUN
    assert run_alone("ddp.py", "--stop-after", 15, start=torchrun) == ""
    printed = run_alone("ddp.py", start=torchrun)
    # Of 2,000 samples a rank has 1,000, in batches of 50; the checkpoint is of the tenth step.
    assert re.findall(r"(\d+) samples", printed) == ["500", "1000", "1000"]
    assert losses(printed)[-1] < 0.5 * losses(printed)[0]


def test_lightning(run_forked):
    printed = run_forked("with_lightning.py", "--steps", 100)
    assert re.findall(r"(\d+) samples,", printed) == ["2000"] * 2
    assert losses(printed)[-1] < losses(printed)[0]


@pytest.mark.slow
def test_lightning_resumes_in_the_middle_of_an_epoch(run_alone):
    printed = run_alone("with_lightning.py", "--steps", 150)
    found = losses(printed)
    assert len(found) == 3
    assert found[-1] < 0.6 * found[0]
    assert re.findall(r"(\d+) samples,", printed) == ["2000"] * 3
    printed = run_alone("with_lightning.py", "--steps", 200, "--resume", "checkpoints/last.ckpt")
    # The last checkpoint is of step 140, the fortieth of its epoch: ten steps of 40 samples were left.
    assert re.findall(r"(\d+) samples,", printed) == ["400", "2000"]


def test_accelerate_resumes_in_the_middle_of_an_epoch(run_forked):
    assert run_forked("with_accelerate.py", "--stop-after", 25) == ""
    printed = run_forked("with_accelerate.py", "--resume")
    # Of 30 steps an epoch, the checkpoint has twenty.
    assert re.findall(r"(\d+) steps", printed) == ["10", "30", "30", "30"]
    assert losses(printed)[-1] < 0.5 * losses(printed)[0]


def test_datasets(run_alone, tmp_path):
    words = random.Random(0)
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for row in range(320):
            praise = ("a dull and tiresome", "a bright and lovely")[row % 2]
            table.writerow([f"{praise} film of {words.randrange(1900, 2030)}", row % 2])
    printed = run_alone("with_datasets.py", "reviews.csv")
    assert len(losses(printed)) == 5
    assert losses(printed)[-1] < 0.3 * losses(printed)[0]


def test_timm(run_forked, folder):
    printed = run_forked("with_timm.py", folder, "--model", "resnet10t", "--size", 64, "--batch-size", 8)
    assert len(losses(printed)) == 3
    assert losses(printed)[-1] < 0.9 * math.log(
        2
    )  # What is guessed costs log 2; MixUp varies from epoch to epoch.


def test_detection_survives_an_image_that_is_missing(run, tmp_path):
    draw = random.Random(0)
    (tmp_path / "images").mkdir()
    images, annotations = [], []
    for number in range(101):
        width, height = draw.randrange(64, 100), draw.randrange(64, 100)
        box = [draw.randrange(30), draw.randrange(30), draw.randrange(12, 30), draw.randrange(12, 30)]
        left, top, w, h = box
        picture = Image.new("RGB", (width, height), "grey")
        ImageDraw.Draw(picture).rectangle((left, top, left + w, top + h), "orange")
        picture.save(tmp_path / "images" / f"{number}.png")
        images.append({"id": 1000 + number, "file_name": f"{number}.png", "width": width, "height": height})
        annotations.append({"id": number, "image_id": 1000 + number, "bbox": box, "category_id": 1})
    (tmp_path / "boxes.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    (tmp_path / "images" / "7.png").unlink()
    printed = run("detection.py", "images", "boxes.json")
    assert len(losses(printed)) == 5
    assert losses(printed)[-1] < 0.5 * losses(printed)[0]
    assert "bad sample 7 in epoch 0: FileNotFoundError" in printed


@pytest.mark.slow
def test_a_language_model_that_resumes_goes_on_as_if_it_had_never_stopped(run, tmp_path):
    text = "the cat sat on the mat, and the dog ran after the cat. " * 300
    np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16).tofile(tmp_path / "train.bin")
    arguments = ("train.bin", "--vocabulary", 128, "--steps")
    whole = run("language_model.py", *arguments, 60)
    assert losses(whole)[-1] < 0.5 * losses(whole)[0]
    (tmp_path / "language_model.pt").unlink()
    begun = run("language_model.py", *arguments, 30)
    assert begun + run("language_model.py", *arguments, 60) == whole


@pytest.mark.slow
def test_ray_train(monkeypatch, request):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    run_alone = request.getfixturevalue("run_alone")
    printed = run_alone("with_ray_train.py", "--epochs", 2, "--samples", 400)
    assert "epoch 1: 200 samples on rank 0" in printed
    assert losses(printed)[0] < 0.6


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short_says_how_to_run_it_and_is_listed(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    opening = text[: text.index('"""', 3)]
    assert f" examples/{name}" in opening
    assert f"]({name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_every_example_is_run():
    own = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if f'("{name}"' not in own] == []
