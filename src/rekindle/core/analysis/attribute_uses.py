"""How functions use an attribute, proven from their bytecode: whether they only read items of it.

Such are `self.files[i]`, `len(self.files)`, `x in self.files`, `for x in self.files` and `if self.files`,
whatever object has the attribute. Anything else is not: to give it to a function or assign it to a variable,
to call one of its methods, or to ask for an attribute whose name the bytecode does not show.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from dis import Instruction
from itertools import pairwise
from types import CodeType, FunctionType

from rekindle.core.analysis.bytecode import NAMED_BY_TEXT, REACHES_ANYTHING, is_of_items, with_inner

# A function that uses one of these may get at any attribute.
ANY_ATTRIBUTE = (
    REACHES_ANYTHING
    | NAMED_BY_TEXT
    | {"getmembers", "__dict__", "__reduce__", "__reduce_ex__", "__getstate__", "asdict", "astuple"}
)
_NOTHING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL", "NOT_TAKEN"})
_TESTS = frozenset({"GET_ITER", "CONTAINS_OP", "TO_BOOL", "IS_OP", "UNARY_NOT"})
_UNARY = frozenset({"UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_NOT", "TO_BOOL"})
_MATCH_CLASS, _IS_OP = dis.opmap["MATCH_CLASS"], dis.opmap["IS_OP"]
_COMPARES_IDENTITIES = frozenset({"id", "is_", "is_not"})
_SINGLETONS = (None, True, False, Ellipsis)
_CLASSES = frozenset({"bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple", "type"})
_LOADS_VARIABLE = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF"})


def may_reach_any_attribute(code: CodeType) -> bool:
    """Whether code uses anything through which an attribute is reached without its name."""
    return any(
        not ANY_ATTRIBUTE.isdisjoint(one.co_names)
        or _MATCH_CLASS in one.co_code[::2]  # `case Dataset(files=x)`
        for one in with_inner(code)
    )


def may_compare_identities(code: CodeType) -> bool:
    """Whether code may ask which object an element is: a stand-in gives a new one every time.

    `x is None` and `type(x) is list` ask for objects that no element is.
    """
    return any(
        any(_compares_identities(*pair) for pair in pairwise(_steps(one)))
        for one in with_inner(code)
        if not _COMPARES_IDENTITIES.isdisjoint(one.co_names) or _IS_OP in one.co_code[::2]
    )


def _steps(code: CodeType) -> list[Instruction]:
    """The instructions, with all that put something on the stack."""
    return [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]


def _compares_identities(before: Instruction, step: Instruction) -> bool:
    if step.opname == "IS_OP":
        is_constant = before.opname == "LOAD_CONST" and any(before.argval is one for one in _SINGLETONS)
        return not (is_constant or (before.opname == "LOAD_GLOBAL" and before.argval in _CLASSES))
    is_name = "LOAD_" in step.opname and step.argval in _COMPARES_IDENTITIES
    return is_name and (step.argval != "id" or step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def used_otherwise(function: FunctionType, names: Iterable[str]) -> set[str]:
    """Those of the attributes that a function uses otherwise than to read items of them."""
    wanted, has_own_len = frozenset(names), "len" in function.__globals__
    found: set[str] = set()
    for code in with_inner(function.__code__):
        if not wanted.isdisjoint(code.co_names):
            found |= _used_otherwise(_steps(code), wanted, has_own_len)
    return found


def _used_otherwise(steps: list[Instruction], names: frozenset[str], has_own_len: bool) -> set[str]:
    found: set[str] = set()
    for position, step in enumerate(steps):
        if step.argval not in names or ("ATTR" not in step.opname and step.opname != "LOAD_METHOD"):
            continue
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            continue  # What is there from then on is no list of ours.
        is_read = step.opname == "LOAD_ATTR" and dis.stack_effect(step.opcode, step.arg) == 0
        if not (is_read and _reads_items(steps, position, has_own_len)):
            found.add(step.argval)
    return found


def _reads_items(steps: list[Instruction], position: int, has_own_len: bool) -> bool:
    """Whether what is loaded at a position is consumed by reading an item, its length or a test of it."""
    if position + 1 == len(steps):
        return False
    following = steps[position + 1]
    if following.opname in _TESTS or following.opname.startswith("POP_JUMP"):
        return True
    if following.opname == "CALL":
        return following.arg == 1 and not has_own_len and _is_len(steps, position)
    above = 0  # how many values are on the stack on top of it
    for step in steps[position + 1 :]:
        if step.is_jump_target or step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return False
        name, arg = step.opname, step.arg or 0
        if is_of_items(step):
            pops, is_item = 2, above == 1
        elif name == "BINARY_SLICE":
            pops, is_item = 3, above == 2
        elif name in ("BINARY_OP", "BUILD_TUPLE", "BUILD_SLICE", "CALL", "COMPARE_OP"):
            pops = {"BUILD_TUPLE": arg, "BUILD_SLICE": arg, "CALL": arg + 2}.get(name, 2)
            is_item = False
        elif name == "LOAD_ATTR" or name == "LOAD_METHOD" or name in _UNARY:
            pops, is_item = 1, False
        elif (
            name == "PUSH_NULL"
            or name.startswith(("LOAD_FAST", "LOAD_CONST", "LOAD_SMALL_INT"))
            or (name in ("LOAD_GLOBAL", "LOAD_DEREF"))
        ):
            pops, is_item = 0, False
        else:
            return False
        if is_item:
            return True
        if pops > above:
            return False
        # (The effect of 3.11's CALL is divided between it and PRECALL.)
        above += 1 - pops if name == "CALL" else dis.stack_effect(step.opcode, step.arg)
    return False


def _is_len(steps: list[Instruction], position: int) -> bool:
    """Whether what is loaded at a position, `a.b.c`, is the argument of `len`."""
    position -= 1
    while position > 0 and steps[position].opname == "LOAD_ATTR":
        position -= 1
    if position < 1 or steps[position].opname not in _LOADS_VARIABLE:
        return False
    before = steps[position - 1]
    if before.opname == "PUSH_NULL" and position > 1:
        before = steps[position - 2]
    return before.opname == "LOAD_GLOBAL" and before.argval == "len"
