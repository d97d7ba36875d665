"""How far the code of a loader is spread over files: whoever reads it follows each change of file."""

from benchmarks.hops import count_hops


def test_the_way_into_an_epoch_and_to_a_batch_stays_short() -> None:
    hops = count_hops()
    assert hops["first iter()"] <= 250, hops
    assert hops["later iter()"] <= 150, hops
    assert hops["next(), median"] <= 40, hops
