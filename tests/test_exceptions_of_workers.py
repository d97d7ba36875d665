"""Exceptions that cannot be sent from a worker are told in words."""

import os
import sys
import types

import pytest
from torch.utils.data import Dataset

import rekindle as rk
from bad_samples import RUNNERS
from covering import each_value

# Exceptions that cannot be sent.


class LocalClass(Dataset):
    """Raises an exception of a class that no other process can find."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 5:

            class HiddenError(Exception):
                pass

            raise HiddenError("from a hidden class")
        return index


class WorkersClass(LocalClass):
    """Raises an exception of a class in a module that exists in the worker alone."""

    def __getitem__(self, index):
        if index == 5:
            module = types.ModuleType(f"made_in_process_{os.getpid()}")
            module.HiddenError = type("HiddenError", (Exception,), {"__module__": module.__name__})
            sys.modules[module.__name__] = module
            raise module.HiddenError("from a hidden class")
        return index


class NeedsArguments(Exception):  # noqa: N818
    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")


class Particular(LocalClass):
    """Raises an exception that cannot be made from its text."""

    def __getitem__(self, index):
        if index == 5:
            raise NeedsArguments("a hidden class", 3)
        return index


class Unpicklable(LocalClass):
    """Raises an exception that holds what cannot be pickled."""

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("from a hidden class", lambda: None)
        return index


STRANGE = [LocalClass(), WorkersClass(), Particular(), Unpicklable()]


@pytest.mark.parametrize("dataset", STRANGE, ids=lambda dataset: type(dataset).__name__)
@pytest.mark.parametrize("runner", ["2 processes", "2 threads"])
def test_an_exception_that_cannot_be_sent_is_told_in_words(dataset, runner):
    loader = rk.DataLoader(dataset, 4, **RUNNERS[runner])
    with pytest.raises(Exception, match="a hidden class") as caught:
        list(loader)
    assert "Traceback" in str(caught.value)


@pytest.mark.parametrize(
    ("runner", "dataset"),
    each_value(RUNNERS, STRANGE),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_exception_that_cannot_be_sent_can_be_skipped(dataset, runner):
    loader = rk.DataLoader(dataset, 4, on_error="skip", **RUNNERS[runner])
    got = [index for batch in loader for index in batch.tolist()]
    assert got == [index for index in range(20) if index != 5]
    (bad,) = loader.report().bad_samples
    assert bad.id == 5
    assert "a hidden class" in bad.reason
