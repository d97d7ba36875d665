"""What a test's dataset reads in a module of its own, as a script's `config.py`."""

from __future__ import annotations

from typing import Any

SIZE = 1


class Settings:
    size = 1


SETTINGS = Settings()
_made: Settings | None = None


def made_at_first_use() -> Settings:
    global _made
    if _made is None:
        _made = Settings()
    return _made


def __getattr__(name: str) -> Any:
    if name == "size":
        return SETTINGS.size
    raise AttributeError(name)


def reset() -> None:
    """Everything as it was when this was imported."""
    global SIZE, SETTINGS, _made
    SIZE, SETTINGS, _made = 1, Settings(), None
    Settings.size = 1
