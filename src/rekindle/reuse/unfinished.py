"""What a dataset is given for what its transform has only begun: it can be passed on, and no more.

The last steps of a split transform are done later. What a dataset computes from the result of the first
ones, or decides by it, would be of an image that is not finished; a few samples that are tried do not show
that, if it happens to one in a hundred. So each image, mask or number is replaced by an `Unfinished`, which
refuses all that can be done with an object but to put it into the sample. Tuples, lists and dicts of them
are watched: whether the dataset has looked into one, so that the last steps must not change what it saw.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import NoReturn, TypeAlias

from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError

HOW_TO_FINISH = (
    "Leave in the dataset what may be cached, and do the rest afterwards, for each use: "
    "DataLoader(…, reuse=…, final_transform=finish), where `def finish(sample): image, label = sample; "
    "return last_steps(image), label`."
)
PLAIN = (bool, int, float, str, bytes, type(None))
Key: TypeAlias = Hashable  # of a dict, or an index
NAME = "Unfinished"  # of the class, which cannot be asked for it while a sample is loaded

_THREAD = threading.local()  # its `recording`: of the sample that this thread loads now


class Recording:
    """What a dataset does with its transform while it makes one sample.

    Attributes:
        calls: The form of each call, and what was returned to the dataset.
        refusal: The first error that the dataset was given for what it did; it may have caught it.
        who: What is refused: the sample, and the class of the dataset.

    """

    def __init__(self, who: str) -> None:
        self.calls: list[tuple[int, Sample]] = []
        self.refusal: ArgumentError | None = None
        self.who = who

    def __enter__(self) -> Recording:
        self._outer = current_recording()
        _THREAD.recording = self
        return self

    def __exit__(self, *_: object) -> None:
        _THREAD.recording = self._outer

    def refused(self, reason: str) -> ArgumentError:
        """The error for a dataset that cannot be split for this reason, which goes on "`dataset` …"."""
        error = ArgumentError(f"{self.who} {reason}. {HOW_TO_FINISH}")
        self.refusal = self.refusal or error
        return error

    def refused_use(self, operation: str) -> ArgumentError:
        """The error for something that was done with an `Unfinished` of this sample."""
        error = self.refused(
            f"uses what its transform returns ({operation}), which is not finished at that moment: the last "
            "steps are done later, for each use of the sample, so it may only be passed on"
        )
        now = current_recording()
        if now is not None and now is not self:  # It is from another sample, or from none.
            now.refusal = now.refusal or error
        return error


def outside_of_samples() -> Recording:
    """For calls of a transform that are for no sample that could be named."""
    return Recording("outside of `__getitem__`, the dataset")


def current_recording() -> Recording | None:
    """Of the sample that this thread loads now."""
    recording: Recording | None = getattr(_THREAD, "recording", None)
    return recording


class _OfUnfinished(type):
    """Its class: what `type(image) == torch.Tensor` compares, a dict of types looks up, `__name__` is of."""

    def __eq__(cls, other: object) -> bool:
        _refuse_class("type(…) ==")
        return cls is other

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __hash__(cls) -> int:
        _refuse_class("type(…) as a key")
        return type.__hash__(cls)

    def __getattribute__(cls, name: str) -> object:
        if name != "__torch_function__":
            _refuse_class(f"type(…).{name}")
        return type.__getattribute__(cls, name)


class Unfinished(metaclass=_OfUnfinished):
    """Stands for a value that the last steps have not been applied to."""

    __slots__ = ("recording", "value")

    def __init__(self, value: Sample, recording: Recording) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "recording", recording)

    def __getattribute__(self, name: str) -> NoReturn:
        if name == "__class__":  # C code of torch takes for a tensor what says that it is of that class.
            _refuse(self, "isinstance")
        _refuse(self, "np.asarray" if name.startswith("__array") else f".{name}")

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., object], types: object, args: object = (), kwargs: object = None
    ) -> NoReturn:
        name = getattr(function, "__name__", "a function")
        raise _error_of_thread(f"torch: {name}")


# Python looks for these in the class, without `__getattribute__`. Not `__call__`: it would make it callable.
_OPERATIONS = """
    bool len iter next reversed contains getitem setitem delitem length_hint hash index int float complex
    str repr format bytes fspath round trunc floor ceil abs neg pos invert eq ne lt le gt ge
    add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or
    radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand rxor ror
    setattr delattr dir sizeof copy deepcopy reduce reduce_ex getstate buffer
    array array_ufunc array_function enter exit await aiter anext aenter aexit
""".split()  # noqa: SIM905 - a table


def _refuse(unfinished: Unfinished, operation: str) -> NoReturn:
    raise object.__getattribute__(unfinished, "recording").refused_use(operation)


def _error_of_thread(operation: str) -> ArgumentError:
    """The error where only the class of an `Unfinished` is known: it is of the sample that is loaded now."""
    return (current_recording() or outside_of_samples()).refused_use(operation)


def _refuse_class(operation: str) -> None:
    """Raise an error for what was done with its class while a sample is loaded: only the dataset can have."""
    if current_recording() is not None:
        raise _error_of_thread(operation)


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Unfinished, *_: object, **__: object) -> NoReturn:
        _refuse(self, name)

    return refuse


for _name in _OPERATIONS:
    setattr(Unfinished, f"__{_name}__", _refusing(f".__{_name}__"))


def unfinished(value: Sample, recording: Recording, plain: bool = True) -> Sample:
    """What a dataset is given for a value: containers of `Unfinished`, and, with `plain`, numbers and texts.

    Plain values in a container are those that were put in: that the last steps leave them is checked later.
    """
    kind = type(value)
    if kind is Unfinished:
        _refuse(value, "the transform is called with it again")
    if value is None or (plain and kind in PLAIN):
        return value
    watched = _WATCHED.get(kind)
    if watched is None:
        return Unfinished(value, recording)
    keys = list(value) if kind is dict else range(len(value))
    parts = [(key, unfinished(value[key], recording, plain)) for key in keys]
    made = watched(parts if kind is dict else [part for _, part in parts])
    made.parts, made.recording = parts, recording
    return made


def of_recording(held: Sample, recording: Recording) -> bool:
    """Whether it stands for a value of this sample, or is a container of such."""
    return object.__getattribute__(held, "recording") is recording


def value_of(held: Unfinished) -> Sample:
    """The value that it stands for."""
    return object.__getattribute__(held, "value")


def items_of(container: Sample) -> Iterator[tuple[Key, Sample]]:
    """The items of a tuple, list or dict; to look at them here opens nothing."""
    if isinstance(container, dict):
        return iter(dict.items(container))
    return enumerate(list.__iter__(container) if isinstance(container, list) else tuple.__iter__(container))


def is_opened(container: Sample) -> bool:
    """Whether the dataset has looked into a container that it was given, or changed it."""
    return bool(container.opened)


def given_items(container: Sample) -> list[tuple[Key, Sample]]:
    """The items of a container as it was given to the dataset."""
    parts: list[tuple[Key, Sample]] = container.parts
    return parts


def is_as_given(held: Sample) -> bool:
    """Whether nobody has put anything else into a container, or what it contains; so are all other values."""
    if base_of(held) is None:
        return True
    parts = given_items(held)
    return len(parts) == sum(1 for _ in items_of(held)) and all(
        key == given and one is part and is_as_given(part)
        for (key, one), (given, part) in zip(items_of(held), parts, strict=True)
    )


def base_of(container: Sample) -> type | None:
    """The type that a watched container stands for; None for all else."""
    return _BASES.get(id(type(container)))


class _OfWatched(type):
    """Its class, which equals the type that it stands for: `type(result) == tuple` is asked for."""

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls.__base__ is other

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __hash__(cls) -> int:
        return hash(cls.__base__)


def _watching(base: type) -> type:
    """A subtype that notes whether any of its methods was called: within the sample that it is of."""

    def noting(method: Callable[..., object]) -> Callable[..., object]:
        def call(self: Sample, *args: object, **named: object) -> object:
            if self.recording is not current_recording():
                raise self.recording.refused_use(f"{base.__name__}: .{method.__name__}")
            self.opened = True
            return method(self, *args, **named)

        return call

    def reduced(self: Sample, _: object) -> tuple[type, tuple[object]]:
        """A copy is not watched: what is in it is looked for one by one."""
        self.opened = True
        return base, (base(self),)

    members: dict[str, object] = {
        name: noting(getattr(base, name))
        for name in dir(base)
        if callable(getattr(base, name)) and name not in _NOT_WATCHED
    }
    members.update(opened=False, parts=[], recording=None, __reduce_ex__=reduced)
    return _OfWatched(base.__name__, (base,), members)


_NOT_WATCHED = frozenset(
    """
    __new__ __init__ __getattribute__ __setattr__ __delattr__ __class__ __reduce_ex__ __init_subclass__
    __subclasshook__ __class_getitem__ __dir__ __sizeof__ __getstate__ fromkeys
    """.split()  # noqa: SIM905 - a table
)
_WATCHED = {base: _watching(base) for base in (dict, list, tuple)}
_BASES = {id(watched): base for base, watched in _WATCHED.items()}
