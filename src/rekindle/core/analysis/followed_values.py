"""Values that code works on, as far as is known without running it: whose they are, how they were reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OWN, HOLDER, HELD = range(3)  # made by the function; the same, of items that are held; held
_UNKNOWN_KEY = "?"


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """What is known of a value."""

    held: int = OWN
    path: str = ""  # how it was reached: "self.seen[index]"
    name: str = ""  # the last of an attribute or a global
    of: Value | None = None  # what it is an attribute of
    thing: object = None  # a constant, what a global stands for, a module, code of an inner function
    uses: frozenset[str] = frozenset()  # the ways to items that it was made of


class Read(NamedTuple):
    """An attribute is read."""

    value: Value


class Call(NamedTuple):
    """A function is called."""

    function: Value
    arguments: list[tuple[int | str, Value]]  # with their place or name
    discarded: bool  # what it returns


class Store(NamedTuple):
    """An item is stored, or deleted if there is no value."""

    container: Value
    key: Value
    value: Value | None
    read_before: bool  # in the same code


class Spent(NamedTuple):
    """Something is done with a value that is none of the above."""

    value: Value
    step: str


Event = Read | Call | Store | Spent
ANY = Value()


@dataclass
class State:
    """The values on the stack and in the variables, before a step."""

    stack: list[Value]
    variables: dict[str, Value]

    def pop(self, count: int = 1) -> list[Value]:
        missing = count - len(self.stack)
        values = self.stack[max(-missing, 0) :] if count else []
        del self.stack[len(self.stack) - len(values) :]
        return [ANY] * missing + values

    def take(self) -> Value:
        return self.stack.pop() if self.stack else ANY

    def copy(self) -> State:
        return State([*self.stack], dict(self.variables))

    def apply(self, effect: int) -> list[Value]:
        """Put as many values on the stack as any step does, or take them from it; those that were taken."""
        if effect >= 0:
            self.stack += [ANY] * effect
            return []
        return self.pop(-effect)


def key_of(key: Value) -> str:
    """How an index is written in the way to an item."""
    if type(key.thing) in (str, int):
        return repr(key.thing)
    return ":" if type(key.thing) is slice else key.path or _UNKNOWN_KEY


def part_of(value: Value, way: str) -> Value:
    """An item of a value."""
    return Value(HELD, value.path + way, uses=frozenset({value.path + way})) if value.held else ANY


def collected(values: list[Value]) -> Value:
    """A new container of these."""
    held = HOLDER if any(one.held for one in values) else OWN
    return Value(held, uses=uses_of(values))


def uses_of(values: list[Value]) -> frozenset[str]:
    """The ways to items that these were made of."""
    return frozenset[str]().union(*(one.uses for one in values))


def higher(one: Value, other: Value) -> Value:
    """The one of which more is to be feared."""
    return other if (other.held, bool(other.path)) > (one.held, bool(one.path)) else one


def joined(one: State, other: State) -> State:
    """What may be there, if either may have been there before."""
    common = min(len(one.stack), len(other.stack))
    top = map(higher, one.stack[len(one.stack) - common :], other.stack[len(other.stack) - common :])
    names = {**other.variables, **one.variables}
    variables = {
        name: higher(value, other.variables[name]) if name in other.variables else value
        for name, value in names.items()
    }
    return State([*one.stack[: len(one.stack) - common], *top], variables)


def is_same(one: State, other: State) -> bool:
    """Whether all values are held, or not, in one as in the other."""
    held = [value.held for value in one.stack] == [value.held for value in other.stack]
    return held and {name: value.held for name, value in one.variables.items()} == {
        name: value.held for name, value in other.variables.items()
    }
