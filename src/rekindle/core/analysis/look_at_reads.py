"""Two looks at what the samples of a dataset depend on, which leave out what its own code changes.

`LookAtHeld` is at what a dataset holds, `LookAtReads` at what its code reads elsewhere: globals, closures,
attributes of classes and of settings. Of these only what stands behind a name that the code uses, or one
object with all the settings of a script would differ after every epoch (`settings.best_loss`).
"""

from __future__ import annotations

import argparse
import enum
import functools
import types
import typing
from abc import ABC

from torch.utils.data import Dataset

from rekindle.core.analysis.code_reads import CodeReads
from rekindle.core.analysis.look import Look
from rekindle.core.analysis.object_state import NotProvenError, is_library, mro_of, vars_of

# Classes of libraries that read no attribute of an object but by a name that the script's code uses.
_WITHOUT_READERS = (object, types.SimpleNamespace, argparse.Namespace, Dataset, ABC, enum.Enum)


class LookAtHeld(Look):
    """What some objects hold. `reads` says what code of theirs may write to numbers of `ctypes`."""

    def __init__(self, *roots: object, reads: CodeReads, budget: float) -> None:
        self._reads, self._is_own = reads, False
        super().__init__(*roots, budget=budget, code=False)

    def attribute(self, name: object, value: object) -> None:
        """Look at the value of an attribute."""
        outer, self._is_own = self._is_own, self._is_own or name in self._reads.written
        self.one(value)
        self._is_own = outer

    def looks_at_numbers(self) -> bool:
        """Whether the code does not write to the numbers found here: workers do that in the same memory."""
        return not (self._is_own or self._reads.writes_numbers)


class LookAtReads(Look):
    """What code `reads`, other than what was looked at as what objects have (`held`).

    What is too much to look at, or cannot be, is left out alone: a look that is not complete proves that
    something was changed, if it finds that, and nothing if it does not.
    """

    def __init__(self, reads: CodeReads, held: Look, *, budget: float) -> None:
        self._reads, self._known = reads, held
        self._modules = {*map(id, reads.modules)}
        super().__init__(*reads.functions, *reads.classes, budget=budget)
        del self._known  # or every look would keep the one before it

    def begin(self, roots: tuple[object, ...]) -> None:
        """Look at each function and class, as far as it can be."""
        self.pass_over(self._known)
        for root in roots:
            self.read(root)

    def wants(self, name: object) -> bool:
        """Whether code uses this name, and does not write to what it stands for."""
        names, written = self._reads.names, self._reads.written
        if name in written:
            return False
        return names is None or name in names or (type(name) is str and name.startswith("__"))

    def wants_attribute(self, name: object, kind: type) -> bool:
        """Whether code uses this attribute: its own by name, that of a library in whatever way."""
        if name in self._reads.written:
            return False
        if type(name) is str and any(_is_kept(vars_of(base).get(name)) for base in mro_of(kind)):
            return False  # It is there once somebody has asked for it.
        return not _is_read_by_scripts(kind) or self.wants(name)

    def attribute(self, name: object, value: object) -> None:
        """Look at the value of an attribute."""
        self.read(value)

    def read(self, value: object) -> None:
        """Look at what code reads by a name."""
        if type(value) is types.ModuleType and id(value) not in self._modules:
            return  # It is a library, or is imported in the middle of an epoch.
        try:
            self.one(value)
        except NotProvenError as error:
            self.note("left out")
            self.leave_out(str(error))

    def looks_at_numbers(self) -> bool:
        """Whether the code does not write to numbers of `ctypes` under a name that is not known."""
        return not self._reads.writes_numbers


def _is_kept(member: object) -> bool:
    return type(member) is functools.cached_property


def _is_read_by_scripts(kind: type) -> bool:
    """Whether no method of a library reads the attributes of such objects."""
    return all(
        base in _WITHOUT_READERS or base is typing.Generic or not is_library(vars_of(base).get("__module__"))
        for base in mro_of(kind)
    )
