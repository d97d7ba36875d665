"""Whether code changes what is held, under whatever name it reaches it.

A call whose result nobody uses is made for what it does: of an object that is held, or given to a library's
function with such an object, it counts as a change unless it is known to be none.
"""

from __future__ import annotations

import array
import operator
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType

import numpy as np
import torch

from rekindle.core.analysis.bytecode import all_names, steps_of, with_inner
from rekindle.core.analysis.followed_code import Follower
from rekindle.core.analysis.followed_values import HELD, OWN, Call, Event, Read, Spent, Store, Value
from rekindle.core.analysis.object_state import attributes_of, is_library, mro_of, vars_of
from rekindle.core.interrupts import is_interrupt


def _public(*kinds: type) -> set[str]:
    return {name for kind in kinds for name in dir(kind) if not name.startswith("_")}


# All methods of containers but those that a container which cannot be changed has as well.
CHANGING_CONTAINERS = frozenset(
    _public(list, dict, set, deque, Counter, OrderedDict, array.array, bytearray)
    - _public(tuple, frozenset, bytes)
    - {
        "buffer_info", "copy", "elements", "fromkeys", "get", "itemsize", "items", "keys", "maxlen",
        "most_common", "tobytes", "tofile", "tolist", "total", "tounicode", "typecode", "values",
    }
    | {"byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort"}
)  # fmt: skip
_SAME_AGAIN = frozenset({"add", "setdefault"})
_IN_PLACE_OPERATORS = frozenset(
    name
    for name in vars(operator)
    if name[:1] == "i" and name[1:].strip("_") and f"__{name}__" in vars(operator)
) - {"index", "invert", "is_", "is_not", "indexOf", "itemgetter", "inv"}
# What these are called with first, they change.
_CHANGE_FIRST = _IN_PLACE_OPERATORS | {
    "copyto", "delitem", "heapify", "heappop", "heappush", "heappushpop", "heapreplace", "insort",
    "insort_left", "insort_right", "place", "put", "putmask", "setitem", "shuffle",
}  # fmt: skip
_OPERATORS = {f"__{name}__" for name in _IN_PLACE_OPERATORS} | {"__delitem__", "__setitem__"}
# Calls for something else than what they change, or that change nothing the second time.
_NO_CHANGES = frozenset(
    {
        "add", "basicConfig", "catch_warnings", "check", "close", "collect", "critical", "debug", "download",
        "download_file", "download_fileobj", "download_to_filename", "error", "eval", "exception", "extract",
        "extractall", "filterwarnings", "flush", "info", "load", "log", "makedirs", "manual_seed", "mkdir",
        "open", "print", "release", "seed", "seek", "set", "setNumThreads", "set_description",
        "set_num_threads", "set_postfix", "setdefault", "shuffle", "simplefilter", "sleep", "start",
        "validate", "verify", "wait", "warn", "warning",
    }
)  # fmt: skip
_FIXED = (
    str, bytes, int, float, complex, bool, PurePath, range, slice, np.dtype, torch.dtype, torch.device,
    torch.Size,
)  # fmt: skip
_MUTABLE = (list, dict, set, deque, bytearray, array.array, np.ndarray, torch.Tensor)
# Generators of C code that nobody else can seed, by the modules that have them.
_OF_C_CODE = {
    "cv2": frozenset({"grabCut", "kmeans", "randShuffle", "randn", "randu", "setRNGSeed"}),
    "PIL.Image": frozenset({"effect_noise"}),
}
_READ_ONLY = ("begin", "explain", "pragma", "select", "with")  # SQL
_EXECUTE = frozenset({"execute", "executemany", "executescript"})
_STATEFUL = ("createBackgroundSubtractor", "KalmanFilter")
# Objects of OpenCV that give the same for the same.
_STATELESS = ("CLAHE", "Cascade", "Detector", "Descriptor", "Feature2D", "Matcher", "UMat")
_ATTRIBUTE = re.compile(r"\w+\.(\w+)((?:\[[^]]*\])?)").fullmatch
_MOST_ROUNDS = 4


def changes_what_is_held(near: list[object], functions: list[FunctionType], changing: frozenset[str]) -> bool:
    """Whether some code changes what is held, or an object goes on from what it did.

    Of `functions`, which reach the objects `near` them; `changing` are methods that change any object.
    """
    if any(map(_goes_on, near)):
        return True
    if not any(_may_change(one, changing) for one in functions):
        return False
    try:
        return _Functions(near, functions, changing).change_anything()
    except Exception as error:  # Code or an object like none before, or too long: it may change anything.
        if is_interrupt(error):
            raise
        return True


def _goes_on(value: object) -> bool:
    """Whether an object of a library keeps what it was given, or is a method that changes a container."""
    kind = type(value)
    if kind is BuiltinFunctionType:
        of = value.__self__  # type: ignore[attr-defined]
        return type(of) in _KEEP and value.__name__ in CHANGING_CONTAINERS - _SAME_AGAIN  # type: ignore[attr-defined]
    if issubclass(kind, torch.nn.Module):
        state = vars(value)
        names = state.get("_buffers") or ()
        return bool(state.get("training")) and any(
            one.startswith(("running_", "num_batches")) and state["_buffers"][one] is not None
            for one in names
        )
    module = vars_of(kind).get("__module__")
    if type(module) is str and module.partition(".")[0] == "cv2" and not issubclass(kind, np.ndarray):
        names = [base.__name__ for base in mro_of(kind)]
        return not any(known in name for name in names for known in _STATELESS)
    return False


IN_PLACE = re.compile(r"[a-z]\w*[^_]_").fullmatch  # torch's methods that end with an underscore
_KEEP = (list, dict, set, deque, Counter, OrderedDict, defaultdict, bytearray, array.array, np.ndarray)


def _may_change(function: FunctionType, changing: frozenset[str]) -> bool:
    """Whether there is anything in code that could be a change, at first glance."""
    names = all_names(function.__code__)
    known = (changing, CHANGING_CONTAINERS, _CHANGE_FIRST, _OPERATORS, _EXECUTE, NAMES_OF_C_CODE)
    if not all(map(names.isdisjoint, known)):
        return True
    if any(name.startswith(_STATEFUL) or IN_PLACE(name) for name in names):
        return True
    for code in with_inner(function.__code__):
        before = ""
        for step in steps_of(code):
            if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
                return True
            if (step.opname == "POP_TOP" and before.startswith("CALL")) or step.argrepr in _IN_PLACE_SIGNS:
                return True
            before = step.opname
    return False


NAMES_OF_C_CODE = frozenset().union(*_OF_C_CODE.values())
_IN_PLACE_SIGNS = frozenset(
    {"+=", "-=", "*=", "/=", "//=", "%=", "**=", "@=", "&=", "|=", "^=", "<<=", ">>="}
)


class _Functions:
    """The functions of a dataset, and what of each other's they are given."""

    def __init__(self, near: list[object], functions: list[FunctionType], changing: frozenset[str]) -> None:
        self.functions, self.changing = functions, changing
        self.kinds = _kinds_of_attributes(near)
        self.plain = frozenset(
            name
            for name, kinds in self.kinds.items()
            if kinds != {type(None)} and all(issubclass(one, (*_FIXED, type(None))) for one in kinds)
        )
        self.by_name: dict[str, list[FunctionType]] = {}
        for one in functions:
            self.by_name.setdefault(one.__name__, []).append(one)
        self.static = {
            id(member.__func__)
            for value in near
            if issubclass(type(value), type)
            for member in [*vars_of(value).values()]  # type: ignore[arg-type]
            if type(member) is staticmethod
        }
        self.given: dict[int, set[str]] = {id(one): set(self._held_at_first(one)) for one in functions}
        self.returned: dict[str, int] = {}

    def change_anything(self) -> bool:
        waiting = self.functions
        for _ in range(_MOST_ROUNDS):
            before = {key: len(names) for key, names in self.given.items()}, dict(self.returned)
            for one in waiting:
                if any(self._is_change(event) for event in self._events(one)):
                    return True
            if before == ({key: len(names) for key, names in self.given.items()}, self.returned):
                break
        return False

    def _events(self, function: FunctionType) -> list[Event]:
        code, held = function.__code__, self.given[id(function)]
        count = code.co_argcount + code.co_kwonlyargcount
        variables = {name: Value(HELD if name in held else OWN, name) for name in code.co_varnames[:count]}
        follower = Follower(function.__globals__, self.plain, self.returned)
        result = follower.follow(code, variables)
        if result.held and result.path not in variables and not function.__name__.startswith("__"):
            self.returned[function.__name__] = max(result.held, self.returned.get(function.__name__, OWN))
        return follower.events

    def _held_at_first(self, function: FunctionType) -> Iterator[str]:
        """The parameters that are held whoever calls: `self`, and those with a list as their default."""
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        if names and (names[0] in ("self", "cls") or self._is_method(function)):
            yield names[0]
        defaults = function.__defaults__ or ()
        yield from (
            name
            for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True)
            if issubclass(type(value), _MUTABLE)
        )
        yield from (
            name
            for name, value in (function.__kwdefaults__ or {}).items()
            if issubclass(type(value), _MUTABLE)
        )

    def _is_method(self, function: FunctionType) -> bool:
        parent = function.__qualname__.rpartition(".")[0]
        return bool(parent) and not parent.endswith("<locals>") and id(function) not in self.static

    def _is_change(self, event: Event) -> bool:
        match event:
            case Read(value):
                return self._reads_a_change(value)
            case Call():
                return self._calls_a_change(event)
            case Store(container, key, value, read_before):
                return container.held == HELD and self._is_update(container, key, value, read_before)
            case Spent(value, "INPLACE"):
                return value.held == HELD and self._is_mutable(value)
        return False

    def _reads_a_change(self, value: Value) -> bool:
        name, of = value.name, value.of
        if of is None:
            return False
        if type(of.thing) is ModuleType and name in _OF_C_CODE.get(of.thing.__name__, ()):
            return True
        if name.startswith(_STATEFUL) and type(of.thing) is ModuleType:
            return True
        if of.held == HELD and name in CHANGING_CONTAINERS - _SAME_AGAIN and self._is_container(of, name):
            return True
        return of.held == HELD and (
            ((name in self.changing or IN_PLACE(name)) and not _is_code(of) and not self._is_self(of))
            or name in _OPERATORS
        )

    def _calls_a_change(self, event: Call) -> bool:
        function, arguments = event.function, event.arguments
        name, of, thing = function.name, function.of, function.thing
        for module, names in _OF_C_CODE.items():
            if name in names and getattr(sys.modules.get(module), name, None) is thing is not None:
                return True
        if name in _EXECUTE and of is not None:
            text = arguments[0][1].thing if arguments else None
            if not (type(text) is str and text.lstrip().lower().startswith(_READ_ONLY)):
                return type(text) is str or of.held == HELD
        held = [one for _, one in arguments if one.held == HELD and not _is_code(one)]
        is_method = of is not None and not _is_code(of)
        first = arguments[0][1] if arguments else None
        of_class = of is not None and name in CHANGING_CONTAINERS and _is_class(of)  # `list.append(…)`
        if not is_method and (name in _CHANGE_FIRST or of_class):
            return first in held
        if type(thing) is np.ufunc:  # `np.add(self.x, 1, self.x)`
            count = thing.nin
            return any(one.held == HELD and type(place) is int and place >= count for place, one in arguments)
        of_script = self.by_name.get(name, ())
        if of_script:
            for one in of_script:
                self._give(one, arguments, is_method)
            return False
        if not event.discarded or name in _NO_CHANGES:
            return False
        if is_method and of is not None:
            return of.held == HELD and not self._is_self(of)
        return bool(name) and any(not self._is_self(one) for one in held) and not _is_of_script(thing)

    def _give(
        self, function: FunctionType, arguments: list[tuple[int | str, Value]], is_method: bool
    ) -> None:
        code = function.__code__
        bound = is_method and id(function) not in self.static
        for place, value in arguments:
            if value.held != HELD or _is_code(value):
                continue
            number = place + bound if type(place) is int else None
            if number is None or number < code.co_argcount:
                name = code.co_varnames[number] if number is not None else str(place)
                self.given[id(function)].add(name)

    def _is_update(self, container: Value, key: Value, value: Value | None, read_before: bool) -> bool:
        if value is None or (read_before and container.path.count("[") == 0):
            return True
        is_known = type(key.thing) in (str, int)
        way = f"{container.path}[{key.thing!r}]" if is_known else f"{container.path}["
        return any(one == way if is_known else one.startswith(way) for one in value.uses)

    def _is_self(self, value: Value) -> bool:
        """Whether this is the object that a method is of: what its own methods do is looked at itself."""
        return value.of is None and value.path in ("self", "cls")

    def _is_container(self, value: Value, method: str) -> bool:
        """Whether this is known to be a container with such a method."""
        kinds = self.kinds.get(value.name, ())
        return any(issubclass(one, _KEEP) and hasattr(one, method) for one in kinds)

    def _is_mutable(self, value: Value) -> bool:
        found = _ATTRIBUTE(value.path)
        kinds = (
            self.kinds.get(f"{found[1]}[]" if found[2] not in ("", "[:]") else found[1], ()) if found else ()
        )
        return any(issubclass(one, _MUTABLE) for one in kinds)


def _kinds_of_attributes(near: list[object]) -> Mapping[str, set[type]]:
    """Of which kinds the attributes of a name are, and of `rows[]` the first items, in all objects."""
    found: dict[str, set[type]] = {}
    for value in near:
        kind = type(value)
        if kind is FunctionType or issubclass(kind, (type, ModuleType, *_KEEP)):
            continue
        for name, one in attributes_of(value, kind) or ():
            found.setdefault(name, set()).add(type(one))
            if (item := _first_item(one)) is not None:
                found.setdefault(f"{name}[]", set()).add(type(item))
    return found


def _first_item(value: object) -> object:
    """An item of a container; of an array it is one itself if it shares its memory."""
    if type(value) is np.ndarray and value.ndim < 2:
        return None
    if type(value) is np.ndarray or type(value) is torch.Tensor:
        return value
    if type(value) is dict:
        return next(iter([*islice(value.values(), 1)]), None)
    return value[0] if type(value) in (list, tuple) and value else None  # type: ignore[index]


def _is_code(value: Value) -> bool:
    """Whether this is a module, a class or a function."""
    thing = value.thing
    return issubclass(type(thing), (ModuleType, type, FunctionType, BuiltinFunctionType))


def _is_class(value: Value) -> bool:
    return issubclass(type(value.thing), type)


def _is_of_script(thing: object) -> bool:
    is_code = issubclass(type(thing), (FunctionType, type))
    return is_code and not is_library(thing.__module__)
