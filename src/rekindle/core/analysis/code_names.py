"""The names that code uses: of globals, attributes and modules, found in its bytecode."""

from __future__ import annotations

import dis
from types import CodeType

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
