"""A look at what the code of a dataset reads elsewhere: globals, closures, attributes of classes.

It is at what stands behind a name that the code uses alone, or one object with all the settings of a script
would differ after every epoch (`settings.best_loss`); and not at what the code itself changes.
"""

from __future__ import annotations

import argparse
import enum
import functools
import types
import typing
from abc import ABC
from collections.abc import Mapping
from typing import cast

from torch.utils.data import Dataset

from rekindle.core.analysis.code_reads import CodeReads
from rekindle.core.analysis.look import Look
from rekindle.core.analysis.look_at_code import CODE
from rekindle.core.analysis.object_state import (
    NotProvenError,
    is_library,
    is_of_script,
    mro_of,
    vars_of,
)

_FEW = 64  # items of a dict
_SECONDS = 0.005  # for a look at what code reads, as far as is seen
# Classes of libraries that read no attribute of an object but by a name that the script's code uses.
_WITHOUT_READERS = (object, types.SimpleNamespace, argparse.Namespace, Dataset, ABC, enum.Enum)


class LookAtReads(Look):
    """What code `reads`, other than what was looked at as what objects have (`held`).

    What is too much to look at, or cannot be, is left out alone: a look that is not complete proves that
    something was changed, if it finds that, and nothing if it does not.
    """

    def __init__(self, reads: CodeReads, held: Look) -> None:
        self._known = held
        self._modules = {*map(id, reads.modules)}
        super().__init__(*reads.functions, *reads.classes, budget=_SECONDS, process=False, reads=reads)
        del self._known  # or every look would keep the one before it

    def begin(self, roots: tuple[object, ...]) -> None:
        """Look at each function and class, as far as it can be."""
        known = self._known._found  # Not code, of which this look may see more.
        for value, kind in zip(known.objects, known.kinds, strict=True):
            if kind not in CODE and not issubclass(kind, type):
                self._seen[id(value)] = len(self._seen)
        for root in roots:
            self.read(root)
        for settings in self.holding(_made_settings, self._reads):
            self.read(settings)

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
        members = [vars_of(base).get(name) for base in mro_of(kind)] if type(name) is str else ()
        if any(type(member) is functools.cached_property for member in members):
            return False  # It is there once somebody has asked for it.
        return not _is_read_by_scripts(kind) or self.wants(name)

    def read(self, value: object) -> None:
        """Look at an attribute, or at what code reads by a name."""
        if type(value) is types.ModuleType and id(value) not in self._modules:
            return  # It is a library, or is imported in the middle of an epoch.
        try:
            self.one(value)
        except NotProvenError as error:
            self.note("left out")
            self.leave_out(str(error))


def functions_are_equal(reads: CodeReads, held: Look, before: Look) -> bool:
    """Whether it is proven that the functions that are held read what those read that were held `before`.

    Both looks know functions by their code alone: `make_resize(64)` and `make_resize(96)` are one to them.
    """
    mine, theirs = _functions(held), _functions(before)
    if len(mine) != len(theirs):
        return False
    exchanged = [pair for pair in zip(mine, theirs, strict=True) if pair[0] is not pair[1]]
    if not exchanged:
        return True
    now, then = (
        LookAtReads(reads._replace(functions=functions, classes=()), known)
        for functions, known in zip(zip(*exchanged, strict=True), (held, before), strict=True)
    )
    return now.is_complete and then.is_complete and now.finds_same(then)


def _functions(look: Look) -> list[types.FunctionType]:
    """The functions that a look has come by, in this order."""
    found = zip(look._found.objects, look._found.kinds, strict=True)
    return [cast("types.FunctionType", value) for value, kind in found if kind is types.FunctionType]


def _made_settings(reads: CodeReads) -> list[object]:
    """Objects of the script's classes that its code makes at their first use, under names that it writes to.

    The attributes that it writes to as well are its own; the others a script may change.
    """
    holders: list[Mapping[str, object]] = [vars_of(kind) for kind in reads.classes]
    holders += {id(one.__globals__): one.__globals__ for one in reads.functions}.values()
    found: list[object] = []
    for name in sorted(reads.written):
        for value in [holder[name] for holder in holders if name in holder]:
            found += dict.values(value) if type(value) is dict and len(value) <= _FEW else (value,)
    return [one for one in found if _is_settings(type(one))]


def _is_settings(kind: type) -> bool:
    if is_of_script(kind):
        return not issubclass(kind, type)
    return kind in (types.SimpleNamespace, argparse.Namespace)


def _is_read_by_scripts(kind: type) -> bool:
    """Whether no method of a library reads the attributes of such objects."""
    return all(
        base in _WITHOUT_READERS or base is typing.Generic or not is_library(vars_of(base).get("__module__"))
        for base in mro_of(kind)
    )
