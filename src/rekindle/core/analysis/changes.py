"""Whether anything that workers have copies of was changed.

With `persistent_workers=False`, torch starts new workers for every epoch, and scripts rely on that: between
two epochs they exchange a transform, relabel samples, change a global. Workers are kept only where a complete
look before and another after it (`look.Look`) prove that nothing was changed.
"""

from __future__ import annotations

from rekindle.core.analysis.look import Look
from rekindle.core.forked_memory import ForkedArrays, is_any_shared


class Watched:
    """Objects that workers get copies of, and how they were when they did.

    `forks` says that workers are forked next. They inherit this; one that is spawned takes its own first look
    at its copies.
    """

    def __init__(self, *roots: object, forks: bool = False) -> None:
        self._roots = roots
        self._look = Look(*roots, forked=ForkedArrays() if forks else None)
        # Why it could never be proven that nothing was changed; empty if it can.
        self.why_unproven = self._look.why_incomplete
        # Whether workers may read what no look proves that is changed while they load: a file, or memory that
        # they share with the script.
        self.may_change_meanwhile = self._look.reads_files or is_any_shared(self._look.addresses)

    def __reduce__(self) -> tuple[type[Watched], tuple[object, ...]]:
        return Watched, self._roots

    def includes(self, *objects: object) -> bool:
        """Whether each of these is one of the objects that are watched."""
        return all(any(one is root for root in self._roots) for one in objects)

    def holds_same_objects(self) -> bool:
        """Whether it is proven that these consist of the same objects as at first; arrays may hold others."""
        return self._look.still_holds(*self._roots, whatever_values=True)

    def is_unchanged(self, *roots: object) -> bool:
        """Whether it is proven that nothing was changed: of the objects, or of those now in their place."""
        look, roots = self._look, roots or self._roots
        if self.why_unproven:
            return False
        if look.still_holds(*roots):
            return True
        forked = None if look.forked is None else ForkedArrays(before=look.forked)
        again = Look(*roots, earlier=look, forked=forked)
        if not (again.is_complete and again.finds_same(look)):
            return False
        self._look = again  # Equal, but in other objects, which may be the ones that are found next time.
        return True
