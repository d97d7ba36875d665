"""Saved states of loaders: bytes choose a state, which fields of it are changed, and to what."""

from functools import cache

from hypothesis import HealthCheck, given, settings

from hostile.state_mutator import LOADERS, STATES, changed_states, outcome, saved_states


@settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed_states())
def _check(changed):
    outcome(*changed)


@cache
def _save_states() -> None:
    for kind, make in LOADERS.items():
        STATES.setdefault(kind, saved_states(make))


def check_state(data: bytes) -> None:
    _save_states()
    _check.hypothesis.fuzz_one_input(data)


def seeds() -> list[bytes]:
    return [bytes([kind]) + bytes([change]) * 200 for kind in range(17) for change in (1, 90)]
