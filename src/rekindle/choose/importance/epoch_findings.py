"""All that one rank measures in an epoch, until the scores take it in."""

from __future__ import annotations

from rekindle.choose.feedback import Feedback
from rekindle.choose.scores import Findings, Loaded
from rekindle.core.counters import Counters, SampleCosts


class EpochFindings:
    """Collects feedback, load times and the loop's waiting and working time since the epoch began."""

    def __init__(self, feedback: Feedback, counters: Counters) -> None:
        self._feedback, self._counters = feedback, counters
        self._parts: list[Findings] = []  # of this epoch
        self._waited = self._worked = 0.0  # the counters' seconds that are in them

    def take_new(self) -> Findings:
        """What was found since the last call; copies feedback from wherever its tensors are."""
        counters = self._counters
        waited, worked = counters.wait.seconds, counters.consume.seconds
        loaded = Loaded(*(SampleCosts() if counters.costs is None else counters.costs).take())
        new = Findings(self._feedback.take(), loaded, waited - self._waited, worked - self._worked)
        self._waited, self._worked = waited, worked
        self._parts.append(new)
        return new

    def collect(self) -> Findings:
        """What was found in this epoch so far."""
        self.take_new()
        self._parts = [Findings.of(self._parts)]
        return self._parts[0]

    def restart(self, findings: Findings | None = None) -> None:
        """Begin a new epoch, or continue one in which this was found."""
        self.take_new()  # Whatever is not taken yet belongs to no epoch now.
        self._parts = [] if findings is None else [findings]

    def time_loads(self, wanted: bool) -> None:
        """Time the loading of every single sample from here on, or do not."""
        self._counters.costs = SampleCosts() if wanted else None
