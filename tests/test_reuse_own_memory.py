"""Reuse where a dataset's memory is written to after its transform was called, or is in a sample twice."""

from typing import Any

import numpy as np
import pytest
import torch

from pictures import Pictures, V, loaded, steps


class OneBuffer(Pictures):
    """Fills one buffer with the first image, then with the second; arrays or tensors of it."""

    def __init__(self, compose: Any, kind: Any) -> None:
        super().__init__(compose, None)
        self.kind, self.buffer = kind, np.zeros((1, 8, 8), dtype=np.float32)

    def view(self, value: float) -> Any:
        self.buffer[:] = value
        return self.transform(self.kind(self.buffer))

    def __getitem__(self, index: int) -> Any:
        return self.view(index), [self.view(100 + index)], index


def cut(image: Any) -> Any:
    return image[:, 2:6]


def one_more_than(image: Any) -> Any:
    return image + 1


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_buffer_that_is_filled_again_after_a_call(kind: Any, split: int) -> None:
    for epoch in loaded(OneBuffer(V.Compose([cut, one_more_than]), kind), split):
        for index, (first, (second,), _) in epoch.items():
            assert {float(first.min()), float(first.max())} == {index + 1}
            assert {float(second.min()), float(second.max())} == {index + 101}


def input_and_target(data: Pictures, image: Any, index: int) -> Any:
    transformed = data.transform(image)
    return {"input": transformed, "target": transformed, "also": [transformed]}


@pytest.mark.parametrize("split", range(4))
def test_a_result_that_is_in_the_sample_several_times(split: int) -> None:
    for epoch in loaded(Pictures(steps(), input_and_target), split):
        for sample in epoch.values():
            assert 10 <= sample["input"].min() <= sample["input"].max() <= 12
            assert torch.equal(sample["input"], sample["target"])
            assert torch.equal(sample["input"], sample["also"][0])
