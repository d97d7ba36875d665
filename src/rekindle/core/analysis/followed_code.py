"""What the instructions of code do, and with which values: followed through its variables without running it.

Of each value is known whether it is the function's own, or held by something that outlasts the call, under
whatever name: `for pool in self.pools`, `a, b = self.pair`, `rows = self.table.reshape(2, -1)`.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from dis import Instruction
from types import CodeType, ModuleType

from rekindle.core.analysis.bytecode import once_for_code
from rekindle.core.analysis.followed_values import (
    ANY,
    HELD,
    HOLDER,
    OWN,
    Call,
    Event,
    Read,
    Spent,
    State,
    Store,
    Value,
    collected,
    higher,
    is_same,
    joined,
    key_of,
    part_of,
    uses_of,
)

_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "NOT_TAKEN"})
_ENDS = frozenset(
    {
        "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD", "RAISE_VARARGS", "RERAISE",
        "RETURN_CONST", "RETURN_VALUE",
    }
)  # fmt: skip
# What these return is what they are called on, or a part of it.
_GIVE_PARTS = frozenset(
    {
        "__enter__", "__getitem__", "__iter__", "detach", "diagonal", "expand", "flatten", "get", "items",
        "keys", "narrow", "numpy", "permute", "ravel", "reshape", "select", "setdefault", "squeeze",
        "swapaxes", "t", "transpose", "unbind", "unsqueeze", "values", "view",
    }
)  # fmt: skip
# The same of functions, and what they are given.
_PASS_ON = frozenset(
    {
        "as_tensor", "asanyarray", "asarray", "ascontiguousarray", "cast", "from_numpy", "frombuffer",
        "memoryview", "ravel", "reshape", "squeeze", "transpose",
    }
)  # fmt: skip
_PICK = frozenset({"getattr", "max", "min", "next", "vars"})
_BY_KEY = frozenset({"__getitem__", "get", "setdefault"})
_COLLECT = frozenset(
    {
        "chain", "dict", "enumerate", "filter", "frozenset", "islice", "iter", "list", "map", "reversed",
        "set", "sorted", "tuple", "zip",
    }
)  # fmt: skip
_PLAIN = (str, bytes, int, float, complex, type(None))
_COMPREHENSIONS = frozenset({"<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>"})
_SLICE = Value(path=":")
_MOST_STEPS = 4_000  # of one function: 0.3 s
_MOST_PASSES = 4
_Names = Mapping[str, object]
_Inner = tuple[int, frozenset[tuple[str, int, str]]]


@once_for_code
def _all_steps(code: CodeType) -> list[Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname not in _SKIPPED]


@dataclass
class Follower:
    """Follows values through one function, and the functions within it."""

    names: _Names  # its globals
    plain: frozenset[str] = frozenset()  # attributes of which is known that nothing can change their values
    returned: Mapping[str, int] = field(default_factory=dict)  # what functions of the script return
    traced: frozenset[str] = frozenset()  # functions of which every use of a result is to be known
    events: list[Event] = field(default_factory=list)
    known: dict[_Inner, tuple[Value, list[Event]]] = field(default_factory=dict)

    def follow(self, code: CodeType, variables: Mapping[str, Value]) -> Value:
        """What the code returns, called with some variables; what it does is added to the `events`."""
        return _Code(self, code, dict(variables)).run()

    def follow_inner(self, code: CodeType, variables: Mapping[str, Value]) -> Value:
        """The same, once for the same variables: a function may call itself."""
        key = id(code), frozenset((name, one.held, one.path) for name, one in variables.items())
        if key not in self.known:
            self.known[key] = ANY, []
            before = len(self.events)
            result = self.follow(code, variables)
            self.known[key] = result, self.events[before:]
            return result
        result, events = self.known[key]
        self.events += events
        return result


class _Code:
    """The steps of some code, and what is in its stack and variables before each that is jumped to."""

    def __init__(self, follower: Follower, code: CodeType, variables: dict[str, Value]) -> None:
        self.follower, self.code = follower, code
        self.free = frozenset(code.co_freevars)
        self.state = State([], variables)
        self.first = variables
        self.targets: dict[int, State] = {}
        self.changed = False
        self.read: set[str] = set()
        self.result = ANY
        self.keywords: tuple[str, ...] = ()

    def run(self) -> Value:
        steps, events = _all_steps(self.code), self.follower.events
        before = len(events)
        if len(steps) > _MOST_STEPS:
            raise ValueError(f"{self.code.co_qualname} is too long to be followed")
        for _ in range(_MOST_PASSES):
            del events[before:]
            self.changed = False
            self._pass(steps)
            if not self.changed:
                break
        return self.result

    def _pass(self, steps: list[Instruction]) -> None:
        self.state, reachable = State([], dict(self.first)), True
        for number, step in enumerate(steps):
            known = self.targets.get(step.offset)
            if not reachable:
                self.state = known.copy() if known else State([], self.state.variables)
            elif known:
                self.state = joined(self.state, known)
            reachable = step.opname not in _ENDS
            jumps = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
            after = self.state.copy() if jumps else None
            following = steps[number + 1] if number + 1 < len(steps) else step
            self._step(step, following)
            if after is not None:
                after.apply(dis.stack_effect(step.opcode, step.arg, jump=True))
                self._note(int(step.argval), after)

    def _note(self, target: int, state: State) -> None:
        known = self.targets.get(target)
        found = joined(known, state) if known else state
        same = known is not None and is_same(known, found)
        self.changed = self.changed or not same
        self.targets[target] = found

    def _step(self, step: Instruction, following: Instruction) -> None:
        state, name = self.state, step.opname
        if name.startswith("LOAD_FAST"):
            names = step.argval if type(step.argval) is tuple else (step.argval,)
            state.stack += [state.variables.get(one, ANY) for one in names]
        elif name.startswith("STORE_FAST"):
            names = step.argval if type(step.argval) is tuple else (step.argval,)
            state.variables[names[0]] = state.take()
            if name == "STORE_FAST_LOAD_FAST":
                state.stack.append(state.variables.get(names[1], ANY))
            elif len(names) > 1:
                state.variables[names[1]] = state.take()
        elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE"):
            unknown = Value(HELD, str(step.argval)) if step.argval in self.free else ANY
            state.stack.append(state.variables.get(step.argval, unknown))
        elif name == "STORE_DEREF":
            state.variables[step.argval] = state.take()
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            state.stack.append(Value(thing=step.argval))
        elif name in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
            self._global(step)
        elif name in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            self._attribute(step)
        elif name in ("BINARY_SUBSCR", "BINARY_SLICE") or (name == "BINARY_OP" and step.argrepr == "[]"):
            values = state.pop(3 if name == "BINARY_SLICE" else 2)
            state.stack.append(self._item(values[0], values[1] if len(values) == 2 else _SLICE, following))
        elif name == "BINARY_OP":
            values = state.pop(2)
            self._spend(values, "INPLACE" if step.argrepr.endswith("=") else name)
            state.stack.append(Value(uses=uses_of(values)))
        elif name in ("COMPARE_OP", "CONTAINS_OP", "IS_OP", "TO_BOOL", "UNARY_NOT"):
            self._spend(state.pop(1 - dis.stack_effect(step.opcode, step.arg)), name)
            state.stack.append(ANY)
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
            self._store(name)
        elif name == "COPY":
            state.stack.append(state.stack[-step.arg] if len(state.stack) >= (step.arg or 1) else ANY)  # type: ignore[operator]
        elif name == "SWAP":
            count = step.arg or 1
            values = state.pop(count)
            state.stack += [values[-1], *values[1:-1], values[0]]
        elif name == "FOR_ITER":
            values = state.pop()
            state.stack += [*values, part_of(values[0], "[]")]
        elif name.startswith("UNPACK_"):
            (value,) = state.pop()
            count = 1 + dis.stack_effect(step.opcode, step.arg)
            state.stack += [part_of(value, f"[{place}]") for place in reversed(range(count))]
        elif name == "BUILD_SLICE":
            state.pop(step.arg or 2)
            state.stack.append(_SLICE)
        elif name.startswith("BUILD_"):
            count = 1 - dis.stack_effect(step.opcode, step.arg)
            values = state.pop(count)
            self._spend(values, name)
            state.stack.append(collected(values))
        elif name in (
            "LIST_APPEND",
            "LIST_EXTEND",
            "SET_ADD",
            "SET_UPDATE",
            "MAP_ADD",
            "DICT_UPDATE",
            "DICT_MERGE",
        ):
            values = state.pop(2 if name == "MAP_ADD" else 1)
            self._spend(values, name)
            place = len(state.stack) - (step.arg or 1)
            if place >= 0:
                state.stack[place] = collected([state.stack[place], *values])
        elif name == "KW_NAMES":
            self.keywords = step.argval
        elif name.startswith("CALL") and "INTRINSIC" not in name:
            self._call(step, following)
        elif name == "MAKE_FUNCTION":
            self._inner(step)
        elif name == "SET_FUNCTION_ATTRIBUTE":
            function = state.take()
            state.pop()
            state.stack.append(function)
        elif name in ("BEFORE_WITH", "LOAD_SPECIAL"):
            (manager,) = state.pop()
            state.stack += [ANY, Value(manager.held, manager.path, "__enter__", manager)]
        elif name in ("RETURN_VALUE", "YIELD_VALUE"):
            values = state.pop()
            self._spend(values, name)
            is_result = name == "RETURN_VALUE"
            self.result = higher(self.result, values[0] if is_result else collected(values))
            state.stack += [] if is_result else [ANY]
        else:
            effect = dis.stack_effect(step.opcode, step.arg, jump=False)
            self._spend(state.apply(effect), name)

    def _spend(self, values: list[Value], step: str) -> None:
        self.follower.events += [Spent(one, step) for one in values if one.path]

    def _global(self, step: Instruction) -> None:
        state, name = self.state, str(step.argval)
        if step.opname == "IMPORT_NAME":
            _, wanted = state.pop(2)
            # `import numpy.random` gives NumPy; `from numpy.random import …`, the module.
            thing: object = sys.modules.get(name if wanted.thing else name.partition(".")[0])
        else:
            thing = self.follower.names.get(name, vars(builtins).get(name))
        if step.opname == "LOAD_GLOBAL":  # A place for `self` may come with it.
            state.stack += [ANY] * (dis.stack_effect(step.opcode, step.arg) - 1)
        is_plain = type(thing) is ModuleType or issubclass(type(thing), _PLAIN)
        value = Value(OWN if is_plain and thing is not None else HELD, name, name, None, thing)
        state.stack.append(value)

    def _attribute(self, step: Instruction) -> None:
        state, name = self.state, str(step.argval)
        count = 1 + dis.stack_effect(step.opcode, step.arg)
        of = (state.stack[-1] if state.stack else ANY) if step.opname == "IMPORT_FROM" else state.take()
        count -= step.opname == "IMPORT_FROM"
        thing = vars(of.thing).get(name) if type(of.thing) is ModuleType else None
        held = HELD if of.held and name not in self.follower.plain else OWN
        if type(of.thing) is ModuleType and thing is not None:
            is_code = callable(thing) or type(thing) is ModuleType or issubclass(type(thing), _PLAIN)
            held = OWN if is_code else HELD
        value = Value(held, f"{of.path}.{name}" if of.path else "", name, of, thing)
        state.stack += [value, ANY][:count] if count <= 2 else [value]
        self.follower.events.append(Read(value))

    def _item(self, container: Value, key: Value, following: Instruction) -> Value:
        value = part_of(container, f"[{key_of(key)}]")
        if container.held and not following.opname.endswith("NONE"):
            self.read.add(value.path)
        return value

    def _store(self, name: str) -> None:
        values = self.state.pop({"STORE_SUBSCR": 3, "DELETE_SUBSCR": 2, "STORE_SLICE": 4}[name])
        stored = None if name == "DELETE_SUBSCR" else values[0]
        container, key = values[-2:] if name != "STORE_SLICE" else (values[1], _SLICE)
        before = type(key.thing) in (str, int) and f"{container.path}[{key_of(key)}]" in self.read
        self.follower.events.append(Store(container, key, stored, before))
        self._spend(values, name)

    def _call(self, step: Instruction, following: Instruction) -> None:
        state, name = self.state, step.opname
        keywords: object = self.keywords
        self.keywords = ()
        if name == "CALL_FUNCTION_EX":
            values = state.pop(1 - dis.stack_effect(step.opcode, step.arg))
            function = next((one for one in values[:2] if one.name or one.thing is not None), ANY)
            given = values[1:]
        else:
            if name == "CALL_KW":
                keywords = state.take().thing
            values = state.pop((step.arg or 0) + 2)
            function, given = _callee(values[0], values[1]), values[2:]
        named = keywords if type(keywords) is tuple else ()
        places: list[int | str] = [*range(len(given) - len(named)), *named]
        arguments = [*zip(places, given, strict=True)]
        self.follower.events.append(Call(function, arguments, following.opname == "POP_TOP"))
        self._spend(given, name)
        if type(function.thing) is CodeType:
            first = values[1] if values[0] is function else ANY  # of a comprehension
            result = self._within(function.thing, {".0": first} if first is not ANY else {})
            state.stack.append(result)
            return
        state.stack.append(self._result(function, given))

    def _result(self, function: Value, given: list[Value]) -> Value:
        name, of = function.name, function.of
        is_method = of is not None and type(of.thing) is not ModuleType
        uses = uses_of([*given, of] if of is not None else given)
        most = max([OWN, *(one.held for one in given)])
        if is_method and of is not None and of.held and name in _GIVE_PARTS:
            if name in _BY_KEY and given:  # `self.counts.get(name, 0)`
                return part_of(of, f"[{key_of(given[0])}]")
            return Value(HELD, f"{of.path}.{name}()" if name != "view" else of.path, uses=uses)
        if not is_method and most == HELD and name in _PASS_ON:
            return Value(HELD, next(one.path for one in given if one.held == most), uses=uses)
        if not is_method and most and name in _PICK:
            return Value(HELD, f"{name}()", uses=uses)
        if not is_method and most and name in _COLLECT:
            return Value(HOLDER, uses=uses)
        held = self.follower.returned.get(name, OWN)
        path = f"{name}()" if held or name in self.follower.traced else ""
        return Value(held, path, uses=uses)

    def _inner(self, step: Instruction) -> None:
        values = self.state.pop(1 - dis.stack_effect(step.opcode, step.arg))
        code = values[-1].thing
        self.state.stack.append(Value(thing=code))
        if type(code) is CodeType and code.co_name not in _COMPREHENSIONS:  # Those are called at once.
            self._within(code, {})

    def _within(self, code: CodeType, given: Mapping[str, Value]) -> Value:
        outer = {name: one for name, one in self.state.variables.items() if name in code.co_freevars}
        return self.follower.follow_inner(code, {**outer, **given})


def _callee(first: Value, second: Value) -> Value:
    """The function that is called; the other place is empty, or has the items of a comprehension."""
    is_first = first.name or type(first.thing) is CodeType
    return first if is_first else second
