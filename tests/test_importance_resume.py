"""A loader with importance= goes on exactly from any state that is its own, and refuses others."""

import copy
import pickle

import pytest
import torch

import rekindle as rk
from chosen import METHODS, SIZE, Numbers, learn, make_loader, train


@pytest.fixture(scope="module")
def references():
    return {name: train(make_loader(make()), 5) for name, make in METHODS.items()}


# Resume.


@pytest.mark.parametrize(
    ("name", "epochs"), [("Buckets", 3), ("InfoBatch", 2), ("ActiveBias", 2), ("OnlineBatchSelection", 2)]
)
def test_a_state_taken_at_any_batch_resumes_exactly(name, epochs, references, tmp_path):
    reference = references[name][:epochs]
    loader = make_loader(METHODS[name]())
    states = [(0, 0, loader.state_dict())]
    for epoch in range(epochs):
        for step, rows in enumerate(loader):
            learn(loader, rows)
            states.append((epoch, step + 1, loader.state_dict()))
        states.append((epoch + 1, 0, loader.state_dict()))
    torch.save([state for *_, state in states], tmp_path / "states.pt")
    saved = torch.load(tmp_path / "states.pt", weights_only=True)
    for (epoch, step, _), state in zip(states, saved, strict=True):
        if epoch == epochs:
            continue
        resumed = make_loader(METHODS[name]())
        resumed.load_state_dict(state)
        assert len(resumed) == len(reference[epoch])
        rest = []
        for rows in resumed:
            rest.append((rows.tolist(), resumed.batch.weights.tolist()))
            learn(resumed, rows)
        assert [rest, *train(resumed, epochs - epoch - 1)] == [
            reference[epoch][step:],
            *reference[epoch + 1 :],
        ]


def test_a_state_resumes_with_workers(references):
    loader = make_loader(METHODS["Buckets"]())
    train(loader, 1)
    iterator = iter(loader)
    learn(loader, next(iterator))
    resumed = make_loader(METHODS["Buckets"](), num_workers=2, persistent_workers=True)
    resumed.load_state_dict(loader.state_dict())
    rest = []
    for rows in resumed:
        rest.append((rows.tolist(), resumed.batch.weights.tolist()))
        learn(resumed, rows)
    assert [rest, *train(resumed, 3)] == [references["Buckets"][1][1:], *references["Buckets"][2:]]
    resumed.close()


def test_a_state_does_not_change_what_goes_on(references):
    loader = make_loader(METHODS["Buckets"]())
    seen = []
    for rows in loader:
        seen.append((rows.tolist(), loader.batch.weights.tolist()))
        learn(loader, rows)
        loader.state_dict()
    assert [seen, *train(loader, 4)] == references["Buckets"]


def _damaged():
    good = make_loader(METHODS["Buckets"]())
    train(good, 2)
    state = good.state_dict()
    own = state["importance_state"]

    def changed(**fields):
        return {**state, "importance_state": {**own, **fields}}

    yield "importance", {**state, "importance": "InfoBatch"}
    yield "importance", {**state, "importance": ""}
    yield "importance", {key: value for key, value in state.items() if key != "importance_state"}
    yield "importance", {**state, "importance_state": 5}
    yield "rate", changed(method={**own["method"], "rate": 0.2})
    yield "loss", changed(scores={**own["scores"], "loss": own["scores"]["loss"][:-1]})
    yield "loads", changed(scores={**own["scores"], "loads": own["scores"]["loads"].float()})
    yield "rival", changed(scores={key: value for key, value in own["scores"].items() if key != "rival"})
    yield "ids", changed(ids=own["ids"] + SIZE)
    yield "weights", changed(weights=own["weights"][:-1])
    yield "epoch", changed(epoch=-1)
    yield "epoch", changed(epoch="two")
    yield "seconds", changed(seconds=[1.0])
    yield "measured", {**state, "importance_state": {k: v for k, v in own.items() if k != "measured"}}
    yield "loaded", changed(loaded=None)
    yield "ranks", changed(world=2)
    yield "own", changed(own=None)
    yield "waiting", changed(own={**own["own"], "waiting": own["own"]["waiting"][:-1]})
    yield "waiting", changed(own={**own["own"], "waiting": own["own"]["waiting"].float()})
    yield "stage", changed(own={**own["own"], "stage": 9})
    yield "waiting", changed(own={"stage": 1})
    yield "step", {**state, "step": 99}


def test_a_state_that_does_not_fit_is_refused_by_name():
    for word, state in _damaged():
        loader = make_loader(METHODS["Buckets"]())
        with pytest.raises(rk.StateError, match=word):
            loader.load_state_dict(state)
        assert len(train(loader, 1)[0]) == 8, "a refused state changes nothing"
    plain = rk.DataLoader(Numbers(), batch_size=8, shuffle=True, seed=5)
    with pytest.raises(rk.StateError, match="importance"):
        plain.load_state_dict(state)


def test_copies_and_pickles_keep_what_was_learnt(references):
    loader = make_loader(METHODS["Buckets"]())
    train(loader, 2)
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert train(other, 3) == references["Buckets"][2:]
    assert train(loader, 3) == references["Buckets"][2:]
