"""NumPy's numbers are taken wherever Python's are, and mean the same in orders, checkpoints and reports."""

from typing import Any

import numpy as np
import pytest
import torch

import rekindle as rk

SETTINGS: list[tuple[Any, dict[str, Any]]] = [
    (rk.Refurbish, {"factor": 3, "split": 1, "min_diversity": 0.5, "epochs": 5}),
    (rk.Refurbish, {"factor": 1.5}),
    (rk.Echo, {"factor": 2, "shuffle": 8}),
    (rk.Jpeg, {"quality": 90}),
    (rk.Ray, {"workers": 2}),
    (rk.Limits, {"pixels": 10, "classes": 5, "seconds": 1.5}),
    (rk.RemoteOptions, {"cache_bytes": 10, "deadline": 5, "attempt_timeout": 0.5, "parallel": 4}),
    (rk.ActiveBias, {"warmup": 2, "smoothness": 0.5}),
    (rk.Buckets, {"warmup": 2, "patience": 3, "rate": 0.25}),
    (rk.InfoBatch, {"epochs": 4, "ratio": 0.5, "anneal": 0.5}),
    (rk.Kakurenbo, {"epochs": 4, "hide": 0.25, "longest": 2}),
    (rk.OnlineBatchSelection, {"epochs": 4, "keep": 0.5, "pressure": 2}),
    (rk.RandomSubset, {"keep": 0.5}),
    (rk.SelectiveBackprop, {"beta": 2, "keep": 0.5, "warmup": 1, "floor": 0.25}),
]


def of_numpy(value: Any) -> Any:
    return np.int64(value) if isinstance(value, int) else np.float32(value)


@pytest.mark.parametrize(("kind", "given"), SETTINGS)
def test_settings_of_numpys_numbers_are_those_of_pythons(kind: Any, given: dict[str, Any]) -> None:
    plain, numpy = kind(**given), kind(**{name: of_numpy(value) for name, value in given.items()})
    for name, value in given.items():
        assert getattr(numpy, name) == value
        assert type(getattr(numpy, name)) in (int, float)
    assert repr(numpy) == repr(plain)


@pytest.mark.parametrize(("kind", "given"), SETTINGS)
def test_no_setting_takes_a_bool_for_a_number(kind: Any, given: dict[str, Any]) -> None:
    for name in given:
        with pytest.raises(rk.ArgumentError, match=name):
            kind(**{**given, name: True})


def test_a_seed_an_epoch_and_a_rank_may_be_numpys(tmp_path: Any) -> None:
    def batches(number: Any) -> list[list[int]]:
        loader = rk.DataLoader(
            range(24), 4, shuffle=True, seed=number(7), shard=(number(1), number(2)), error_budget=number(0)
        )
        loader.set_epoch(number(2))
        torch.save(loader.state_dict(), tmp_path / "state.pt")
        torch.load(tmp_path / "state.pt", weights_only=True)
        return [batch.tolist() for batch in loader]

    assert batches(np.int64) == batches(int)


@pytest.mark.parametrize("seed", [True, np.bool_(True), 3.0, np.float64(3), -1, 2**63, "3"])
def test_what_is_no_integer_is_no_seed(seed: Any) -> None:
    with pytest.raises(rk.ArgumentError, match="seed must be an integer"):
        rk.DataLoader(range(4), seed=seed)
