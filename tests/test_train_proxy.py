"""Selection via proxy: a small model is trained through the loader, and its scores choose samples."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import rekindle as rk


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two clear clusters, and 20 samples in between that nobody can tell apart."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(220) % 2
    points = torch.randn(220, 2, generator=draw) * 0.3 + (labels[:, None] * 6 - 3)
    points[200:] = torch.randn(20, 2, generator=draw) * 0.3
    file = tmp_path_factory.mktemp("proxy") / "scores.npz"
    torch.manual_seed(0)
    rk.train_proxy(nn.Linear(2, 2), TensorDataset(points, labels), file, epochs=8, batch_size=4)
    return TensorDataset(points, labels), file


@pytest.mark.parametrize("criterion", ["least_confidence", "entropy", "forgetting"])
def test_a_proxy_finds_the_hard_samples(trained, criterion):
    dataset, file = trained
    method = rk.SelectionViaProxy(file, keep=20 / 220, criterion=criterion)
    loader = rk.DataLoader(dataset, batch_size=10, shuffle=True, seed=0, importance=method)
    epochs = []
    for _ in range(2):
        epochs.append(torch.cat([loader.batch.ids for _ in loader]).tolist())
        assert len(epochs[-1]) == 20
    assert sorted(epochs[0]) == sorted(epochs[1]), "the same subset in every epoch"
    hard = sum(index >= 200 for index in epochs[0])
    if criterion == "forgetting":  # Few are, by so small a model, and none of those that are clear.
        forgotten = np.flatnonzero(np.load(file)["forgetting"])
        assert 3 <= len(forgotten) <= 20
        assert set(forgotten.tolist()) <= set(epochs[0])
        assert forgotten.min() >= 200
    else:
        assert hard >= 19


def test_the_file_serves_any_share(trained):
    _, file = trained
    small, large = (
        set(rk.SelectionViaProxy(file, keep).plan(0, _scores(220))[0].tolist()) for keep in (0.1, 0.5)
    )
    assert small < large
    assert (len(small), len(large)) == (22, 110)


def _scores(size):
    from rekindle.choose import Scores

    return Scores.unknown(size, 0)


def test_files_that_do_not_fit_are_refused(trained, tmp_path):
    _, file = trained
    with pytest.raises(rk.DataError, match="220 samples"):
        rk.SelectionViaProxy(file).plan(0, _scores(10))
    with pytest.raises(rk.DataError, match="train_proxy"):
        rk.SelectionViaProxy(tmp_path / "none.npz")
    whole = file.read_bytes()
    for name, damaged in (("cut.npz", whole[:100]), ("empty.npz", b""), ("text.npz", b"hello")):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(rk.DataError, match="train_proxy"):
            rk.SelectionViaProxy(tmp_path / name)
    np.savez(tmp_path / "wrong.npz", entropy=np.array([np.nan], np.float32))
    with pytest.raises(rk.DataError, match="entropy"):
        rk.SelectionViaProxy(tmp_path / "wrong.npz", criterion="entropy")
    with pytest.raises(rk.DataError, match="train_proxy"):
        rk.SelectionViaProxy(tmp_path / "wrong.npz", criterion="forgetting")
