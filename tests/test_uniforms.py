"""Uniform random numbers by key: those of a sample depend on nothing else."""

import numpy as np

from rekindle.core import counter_rng


def test_uniforms_are_a_function_of_seed_sample_turn_and_step() -> None:
    together = counter_rng.uniforms(5, [3, 9, 2**40], [0, 1, 2], step=4, count=7)
    assert together.shape == (3, 7)
    for row, (sample, turn) in enumerate([(3, 0), (9, 1), (2**40, 2)]):
        np.testing.assert_array_equal(
            counter_rng.uniforms(5, sample, turn, step=4, count=7)[0], together[row]
        )
    for other in (
        counter_rng.uniforms(6, 3, 0, 4, 7),
        counter_rng.uniforms(5, 4, 0, 4, 7),
        counter_rng.uniforms(5, 3, 1, 4, 7),
        counter_rng.uniforms(5, 3, 0, 5, 7),
    ):
        assert not np.isin(other, together[0]).any()


def test_a_samples_first_uniforms_do_not_depend_on_how_many_follow() -> None:
    many = counter_rng.uniforms(1, range(10), 2, count=33)
    for count in range(34):
        np.testing.assert_array_equal(counter_rng.uniforms(1, range(10), 2, count=count), many[:, :count])
    assert len(np.unique(many)) == many.size


def test_uniforms_are_uniform_and_have_53_bits() -> None:
    uniforms = counter_rng.uniforms(0, range(20_000), count=5)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    counts, _ = np.histogram(uniforms, bins=100, range=(0, 1))
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < chi_squared < 160  # 99 degrees of freedom: far beyond one in a thousand on either side
    assert abs(np.corrcoef(uniforms.T) - np.eye(5)).max() < 0.03
    words = (uniforms.ravel() * 2**53).astype(np.uint64)
    assert np.bitwise_or.reduce(words) == 2**53 - 1
    assert np.bitwise_and.reduce(words) == 0


def test_uniforms_never_coincide_with_the_seeds_of_samples() -> None:
    seeds = counter_rng.seeds(1, range(1000)) >> np.uint64(11)
    uniforms = (counter_rng.uniforms(1, range(1000), step=0xFFFF, count=8) * 2**53).astype(np.uint64)
    assert not np.isin(seeds, uniforms).any()
