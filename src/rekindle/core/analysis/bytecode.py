"""What the bytecode of a function shows: the names that it uses, its steps, the functions within it."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator
from dis import Instruction
from types import CodeType
from typing import TypeVar

Found = TypeVar("Found")
Start = tuple[int | None, int | None]
_FILLER = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "NOT_TAKEN"})
# Names by which code reaches what it does not name: any global or module, and what frames refer to.
REACHES_ANYTHING = frozenset(
    {
        "PyDLL", "_current_frames", "_getframe", "__builtins__", "__globals__", "__import__",
        "__subclasses__", "ag_frame", "cr_frame", "currentframe", "eval", "exec", "exec_module", "f_back",
        "f_builtins", "f_globals", "f_locals", "get_objects", "get_referents", "get_referrers",
        "get_type_hints", "getclosurevars", "getline", "getlines", "getmodule", "gi_frame", "globals",
        "import_module", "import_string", "load_module", "locals", "locate", "modules", "py_object",
        "pythonapi", "reload", "resolve_name", "run_module", "run_path", "safeimport", "tb_frame", "vars",
        "walk_stack", "walk_tb",
    }
)  # fmt: skip
# With these, a text names an attribute.
NAMED_BY_TEXT = frozenset({"__getattribute__", "attrgetter", "getattr", "getattr_static", "methodcaller"})
_READS_A_GLOBAL = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME", "IMPORT_FROM"}
)


def once_for_code(find: Callable[[CodeType], Found]) -> Callable[[CodeType], Found]:
    """The function with a memory of what it found: a second loader asks about the same code."""
    known: dict[int, tuple[CodeType, Found]] = {}  # by id, and so kept alive

    @functools.wraps(find)
    def found(code: CodeType) -> Found:
        entry = known.get(id(code))
        if entry is None:
            entry = known[id(code)] = (code, find(code))
        return entry[1]

    return found


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and that of all functions and classes within it."""
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from with_inner(constant)


@once_for_code
def steps_of(code: CodeType) -> list[Instruction]:
    """The instructions of code that do something."""
    return [step for step in dis.get_instructions(code) if step.opname not in _FILLER]


@once_for_code
def all_names(code: CodeType) -> frozenset[str]:
    """The names of globals, modules and attributes that a function uses, with functions within it."""
    return frozenset(name for one in with_inner(code) for name in one.co_names)


def may_reach_anything(code: CodeType) -> bool:
    """Whether code may reach objects that it does not name, `getattr(function, "__globals__")` included."""
    names = all_names(code)
    if not names.isdisjoint(REACHES_ANYTHING):
        return True
    return not names.isdisjoint(NAMED_BY_TEXT) and any(map(REACHES_ANYTHING.__contains__, texts_of(code)))


def texts_of(code: CodeType) -> Iterator[str]:
    """The names in the texts of code: two in "a.b"."""
    for one in with_inner(code):
        for constant in one.co_consts:
            if type(constant) is str:
                yield from constant.split(".")


@once_for_code
def global_names(code: CodeType) -> frozenset[str]:
    """The names of globals and modules that a function reads, those of functions within it included."""
    return _arguments_of(_READS_A_GLOBAL, code) - {""}  # `from . import names`


@once_for_code
def imported_names(code: CodeType) -> frozenset[str]:
    """The names of modules that a function imports when it is called, with functions within it."""
    return _arguments_of(frozenset({"IMPORT_NAME"}), code)


def _arguments_of(names: frozenset[str], code: CodeType) -> frozenset[str]:
    steps = (step for one in with_inner(code) for step in steps_of(one))
    return frozenset(str(step.argval) for step in steps if step.opname in names)


def start_of(step: Instruction) -> Start:
    """Line and column at which the expression begins that an instruction is of."""
    return (None, None) if step.positions is None else (step.positions.lineno, step.positions.col_offset)


def loads_at(start: Start, steps: list[Instruction]) -> list[Instruction]:
    """What is loaded where an expression begins: `a`, `a.b` and `a.b.c` of that one."""
    return [step for step in steps if step.opname.startswith("LOAD_") and start_of(step) == start]


def on_line_of(step: Instruction, steps: list[Instruction]) -> list[Instruction]:
    """The instructions of the same line."""
    line = start_of(step)[0]
    return [one for one in steps if start_of(one)[0] == line]


def is_of_items(step: Instruction) -> bool:
    """Whether an item is read: `pool[label]`."""
    return step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")
