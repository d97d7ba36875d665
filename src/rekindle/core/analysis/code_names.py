"""The names that code uses: of globals, attributes and modules, found in its bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

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
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_NAMES_OF_CODE: dict[int, tuple[CodeType, frozenset[str]]] = {}
_ALL_NAMES_OF_CODE: dict[int, tuple[CodeType, frozenset[str]]] = {}
_READS_A_GLOBAL = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME", "IMPORT_FROM"}
)


def all_names(code: CodeType) -> frozenset[str]:
    """The names of globals, modules and attributes that a function uses, with functions within it."""
    known = _ALL_NAMES_OF_CODE.get(id(code))
    if known is None:
        names = set(code.co_names)
        for constant in code.co_consts:
            if type(constant) is CodeType:
                names |= all_names(constant)
        known = _ALL_NAMES_OF_CODE[id(code)] = (code, frozenset(names))
    return known[1]


def may_reach_anything(code: CodeType) -> bool:
    """Whether code may reach objects that it does not name, `getattr(function, "__globals__")` included."""
    names = all_names(code)
    if not names.isdisjoint(REACHES_ANYTHING):
        return True
    return not names.isdisjoint(NAMED_BY_TEXT) and any(map(REACHES_ANYTHING.__contains__, texts_of(code)))


def texts_of(code: CodeType) -> Iterator[str]:
    """The names in the texts of code: two in "a.b"."""
    for constant in code.co_consts:
        if type(constant) is str:
            yield from constant.split(".")
        elif type(constant) is CodeType:
            yield from texts_of(constant)


def global_names(code: CodeType) -> frozenset[str]:
    """The names of globals and modules that a function reads, those of functions within it included."""
    known = _NAMES_OF_CODE.get(id(code))
    if known is None:
        names = {
            str(step.argval)
            for step in dis.get_instructions(code)
            if step.opname in _READS_A_GLOBAL and step.argval
        }
        for constant in code.co_consts:
            if type(constant) is CodeType:
                names |= global_names(constant)
        known = _NAMES_OF_CODE[id(code)] = (code, frozenset(names))
    return known[1]


_IMPORTS_OF_CODE: dict[int, tuple[CodeType, frozenset[str]]] = {}


def imported_names(code: CodeType) -> frozenset[str]:
    """The names of modules that a function imports when it is called, with functions within it."""
    known = _IMPORTS_OF_CODE.get(id(code))
    if known is None:
        names: set[str] = set()
        if _IMPORT_NAME in code.co_code[::2]:
            names = {str(step.argval) for step in dis.get_instructions(code) if step.opcode == _IMPORT_NAME}
        for constant in code.co_consts:
            if type(constant) is CodeType:
                names |= imported_names(constant)
        known = _IMPORTS_OF_CODE[id(code)] = (code, frozenset(names))
    return known[1]
