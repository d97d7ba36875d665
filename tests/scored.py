"""Scores of a made-up model, and the methods that choose by them."""

import numpy as np

import rekindle as rk
from rekindle.choose import Measured, Scores

METHODS = {
    "Uniform": lambda: rk.Uniform(),
    "RandomSubset": lambda: rk.RandomSubset(keep=0.3),
    "InfoBatch": lambda: rk.InfoBatch(epochs=10),
    "Kakurenbo": lambda: rk.Kakurenbo(epochs=10),
    "SelectiveBackprop": lambda: rk.SelectiveBackprop(),
    "OnlineBatchSelection": lambda: rk.OnlineBatchSelection(epochs=10),
    "ActiveBias": lambda: rk.ActiveBias(),
    "Buckets": lambda: rk.Buckets(warmup=1),
}


class Recorded(rk.Uniform):
    """All samples, by a method that may read all scores: its plan is its own."""

    def plan(self, epoch, scores):
        return super().plan(epoch, scores)


def scored(size, seed=0, known=1.0, epochs=1, logits=True):
    """Scores as some epochs of feedback on a made-up model leave them."""
    scores = Scores.unknown(size, seed)
    rng = np.random.default_rng(seed % 2**32)
    for epoch in range(epochs):
        ids = np.flatnonzero(rng.random(size) < known)
        right = rng.random(len(ids)).astype(np.float32) * 0.98 + 0.01
        rival = ((1 - right) * rng.random(len(ids))).astype(np.float32)
        unknown = np.full(len(ids), np.nan, np.float32)
        correct = (right > rival).astype(np.int8) if logits else np.full(len(ids), -1, np.int8)
        measured = Measured(
            ids, -np.log(right), right if logits else unknown, rival if logits else unknown, correct,
            np.zeros(len(ids), np.int32),
        )  # fmt: skip
        scores.note(epoch, measured)
    return scores
