"""What the code of a dataset and of its collate function shows before the first sample: what is to be seeded.

To look takes a few milliseconds, and in a forked worker it also copies every page of memory that it comes by.
So it is done in the main process, before workers are forked; a worker goes by that if it is proven that its
dataset still consists of the same objects, and looks itself if not, but for the items of long containers.
"""

from __future__ import annotations

from typing import NamedTuple

from torch.utils.data import default_collate, default_convert

from rekindle.core.analysis.held_generators import HeldGenerator, held_generators
from rekindle.core.analysis.near_objects import held_objects
from rekindle.core.analysis.possible_draws import LongContainers, possible_draws
from rekindle.core.analysis.repeatable import is_repeatable
from rekindle.core.analysis.self_changes import may_keep_draws, may_read_on
from rekindle.core.global_rng import GENERATORS
from rekindle.core.public_rng import RandomSource
from rekindle.run.worker_info import seed_is_the_scripts

DRAW_NOTHING = (default_collate, default_convert)


class CodeFindings(NamedTuple):
    """What dataset and collate function hold, and which generators they may draw from, as far as is known.

    `asks_again`: for samples that were loaded without seeds; not if that may change others.
    """

    held: tuple[HeldGenerator, ...] = ()
    asks_again: bool = True
    drawn_from: tuple[RandomSource, ...] = ()
    collation_draws_from: tuple[RandomSource, ...] = ()


def look_into(
    dataset: object,
    roots: tuple[object, ...],
    collate_fn: object,
    *,
    draws: bool,
    once: bool,
    keeps_parts: bool,
    known: LongContainers | None = None,
) -> CodeFindings:
    """Look into what samples are made by (the `roots`) and what collates them, without running any of it.

    With `draws=False`, the dataset is known not to draw from any generator. With `once`, no sample is
    recomputed; with `keeps_parts`, parts of samples are kept in a cache. Containers that are `known` are not
    looked at again where samples can be asked for again: if others are in them by now, that shows.
    """
    roots = roots if draws else ()
    held = held_generators(*roots, collate_fn)
    asks_again = True
    drawn_from: tuple[RandomSource, ...] = ()
    collation_draws_from: tuple[RandomSource, ...] = ()
    if draws:
        reads_on = may_read_on(dataset)
        keeps = bool(held) and may_keep_draws(*roots)
        asks_again = not (once or reads_on) and (not keeps or is_repeatable(dataset))
        # Who may read on cannot be asked again if there is a hole in the proof.
        if reads_on or not (once or asks_again):
            drawn_from = GENERATORS
        else:
            drawn_from = _possible(*roots, known=known if asks_again else None)
        if once or (keeps_parts and reads_on) or not keeps:
            drawn_from += _of_these(held, *roots)
    if collate_fn not in DRAW_NOTHING:
        # It is called once, and nothing shows if the proof has a hole; so that is asked only where threads
        # that load need not wait for each other.
        collation_draws_from = GENERATORS if draws else _possible(collate_fn)
        collation_draws_from += _of_these(held, collate_fn)
    return CodeFindings(held, asks_again, drawn_from, collation_draws_from)


def _possible(*roots: object, known: LongContainers | None = None) -> tuple[RandomSource, ...]:
    """The global generators that these may draw from."""
    names = possible_draws(*roots, keeps_seed=seed_is_the_scripts(), known=known)
    return tuple(generator for generator in GENERATORS if generator.name in names)


def _of_these(held: tuple[HeldGenerator, ...], *roots: object) -> tuple[RandomSource, ...]:
    """Those of the generators that some objects hold."""
    near = {id(value) for _, value in held_objects(*roots)} if held else set()
    return tuple(one for one in held if id(one.generator) in near)
