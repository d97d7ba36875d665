"""Whether a transform of another library does what its class is known to do.

Scripts put functions of their own into one: `resize.forward = …`, a forward hook, a method of the class
itself. A translation, which goes by the class and the parameters, would leave them out.
"""

from __future__ import annotations

import types

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def module_of(function: object) -> str:
    """The module that a function was written in: `functools.wraps` gives a function the names of another."""
    found = getattr(function, "__globals__", {}).get("__name__") or getattr(function, "__module__", None)
    return found if isinstance(found, str) else ""


def why_modified(transform: object, libraries: tuple[str, ...]) -> str:
    """What a script has put in the place of the libraries' own code; empty if it has changed nothing."""
    kind, own = type(transform), getattr(transform, "__dict__", {})
    hooks = [name for name in _HOOKS if own.get(name)]
    if hooks:
        return f"it has hooks ({', '.join(hooks)}), which would not be called"
    for name, value in own.items():
        if callable(value) and isinstance(getattr(kind, name, None), types.FunctionType):
            return f"its {name} is {value!r}, in the place of its class's"
    for base in kind.__mro__:
        for name, member in vars(base).items():
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if not isinstance(function, types.FunctionType) or base.__module__.split(".")[0] not in libraries:
                continue
            module = module_of(function)
            if module.split(".")[0] not in libraries:
                return f"{base.__qualname__}.{name} is {module}.{function.__qualname__}"
    return ""
