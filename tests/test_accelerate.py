"""Real Accelerate trains with our loader, and it stays ours."""

import importlib
import types
import warnings

import pytest
import torch

import light_torchvision  # noqa: F401 - where Accelerate imports torchvision
import rekindle as rk
from framework_loaders import OWN_ARGUMENTS, Line, Noisy, own_arguments
from same import same


@pytest.fixture(autouse=True, scope="module")
def _accelerate():
    """Import it for these tests only: a process with all that it imports takes longer to fork."""
    with warnings.catch_warnings():  # What it imports is not ours to mend.
        warnings.simplefilter("ignore")
        importlib.import_module("accelerate.data_loader")


@pytest.fixture
def accelerator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate import Accelerator

        return Accelerator(cpu=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_accelerate_hands_on_the_batches_of_our_engine(accelerator, num_workers):
    arguments = {"batch_size": 8, "shuffle": True, "num_workers": num_workers, "seed": 3}
    prepared = accelerator.prepare(rk.DataLoader(Line(), **arguments))
    alone = rk.DataLoader(Line(), **arguments)
    for _ in range(2):
        assert same(list(prepared), list(alone))
    assert len(prepared) == 4
    assert prepared.report().batches == 8, "the batches came from another loader"


def test_accelerate_keeps_our_arguments(accelerator):
    prepared = accelerator.prepare(rk.DataLoader(Line(), batch_size=8, **OWN_ARGUMENTS))
    assert isinstance(prepared, rk.DataLoader)
    assert own_arguments(prepared) == OWN_ARGUMENTS


def test_accelerate_keeps_our_bad_sample_policy(accelerator):
    loader = rk.DataLoader(Line(bad=(5,)), batch_size=8, num_workers=2, on_error="skip", error_budget=0.1)
    ids = torch.cat([batch[2] for batch in accelerator.prepare(loader)]).tolist()
    assert sorted(ids) == [i for i in range(32) if i != 5]


def test_accelerate_prepares_a_loader_only_once(accelerator):
    prepared = accelerator.prepare(rk.DataLoader(Line(), batch_size=8, seed=1))
    assert accelerator.prepare(prepared) is prepared


def test_accelerate_notices_the_last_batch(accelerator):
    prepared = accelerator.prepare(rk.DataLoader(Line(30), batch_size=8))
    ends = [accelerator.gradient_state.end_of_dataloader for _ in prepared]
    assert ends == [False, False, False, True]


def test_accelerate_deals_our_order_to_its_processes():
    from accelerate.data_loader import prepare_data_loader

    arguments = {"batch_size": 4, "shuffle": True, "seed": 5, "on_error": "skip"}
    shares = [
        prepare_data_loader(rk.DataLoader(Line(), **arguments), num_processes=2, process_index=rank)
        for rank in range(2)
    ]
    assert all(isinstance(share, rk.DataLoader) for share in shares)
    assert all((share.seed, share.on_error) == (5, "skip") for share in shares)
    alone = rk.DataLoader(Line(), **arguments)
    for _ in range(2):
        batches = [batch[2] for batch in alone]
        for rank, share in enumerate(shares):
            assert same([batch[2] for batch in share], batches[rank::2])


def test_accelerate_skips_batches_without_losing_our_arguments(accelerator):
    from accelerate.data_loader import skip_first_batches

    prepared = accelerator.prepare(rk.DataLoader(Line(), batch_size=8, **OWN_ARGUMENTS))
    rest = skip_first_batches(prepared, 2)
    assert own_arguments(rest) == OWN_ARGUMENTS
    assert torch.cat([batch[2] for batch in rest]).tolist() == list(range(16, 32))


@pytest.mark.parametrize("name", ["importance", "redundancy"])
def test_skipping_batches_that_were_chosen_is_refused_with_what_to_do(accelerator, name):
    from accelerate.data_loader import skip_first_batches

    given = {"importance": rk.Buckets(), "redundancy": rk.Redundancy([[0, 3], [1, 2]])}[name]
    prepared = accelerator.prepare(rk.DataLoader(Line(), batch_size=8, **{name: given}))
    with pytest.raises(rk.ArgumentError, match=r"skip_first_batches\(2\).*load_state_dict"):
        skip_first_batches(prepared, 2)


@pytest.mark.parametrize("name", ["importance", "redundancy", "reuse"])
def test_what_lays_out_the_batches_itself_does_so_with_a_seedable_sampler_too(name):
    """As the Trainer of Hugging Face's transformers asks for one."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    given = {"importance": rk.Uniform(), "redundancy": rk.Redundancy([[0, 3], [1, 2]])}
    given["reuse"] = rk.Echo(2, after="batch")
    arguments = {"batch_size": 8, "shuffle": True, "seed": 3, name: given[name]}
    seedable = DataLoaderConfiguration(use_seedable_sampler=True)
    prepared = Accelerator(cpu=True, dataloader_config=seedable).prepare(rk.DataLoader(Line(), **arguments))
    assert same([batch[2] for batch in prepared], [batch[2] for batch in rk.DataLoader(Line(), **arguments)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"importance": rk.Uniform()}], ids=str)
def test_accelerates_base_loader_stands_behind_the_batch_in_hand(accelerator, workers, options):
    def make():
        return rk.DataLoader(Line(), batch_size=8, shuffle=True, seed=3, num_workers=workers, **options)

    whole = [batch[2] for loader in [make()] for _ in range(2) for batch in loader]
    prepared = accelerator.prepare(make())
    states = [prepared.base_dataloader.state_dict()]
    states += [prepared.base_dataloader.state_dict() for _ in range(2) for _ in prepared]
    for consumed, state in [*enumerate(states[:-1])][:: 3 if workers else 1]:
        resumed = accelerator.prepare(make())
        resumed.base_dataloader.load_state_dict(state)
        assert same([batch[2] for batch in resumed], whole[consumed : 4 * (1 + consumed // 4)])


@pytest.mark.parametrize("at", [(0, 2), (1, 3), (1, 4)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_accelerate_saves_where_our_loader_stands_and_resumes_there(tmp_path, at, shuffle):
    """In a run that was given no seed, and counts its epochs from 0 again."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def prepared():
        configuration = DataLoaderConfiguration(use_stateful_dataloader=True)
        accelerator = Accelerator(cpu=True, dataloader_config=configuration)
        return accelerator, accelerator.prepare(rk.DataLoader(Noisy(), batch_size=3, shuffle=shuffle))

    accelerator, loader = prepared()
    left = []
    for epoch in range(3):
        for step, batch in enumerate(loader, 1):
            if (epoch, step) > at:
                left.append(batch)
            elif (epoch, step) == at:
                accelerator.save_state(tmp_path)
    accelerator, loader = prepared()
    accelerator.load_state(tmp_path)
    resumed = [batch for _ in range(3) for batch in loader]
    assert same(resumed[: len(left)], left)


def test_accelerate_leaves_torchs_own_loader_alone(accelerator):
    accelerator.prepare(rk.DataLoader(Line(), batch_size=8))
    theirs = accelerator.prepare(torch.utils.data.DataLoader(Line(), batch_size=8))
    assert not isinstance(theirs, rk.DataLoader)
    assert torch.cat([batch[2] for batch in theirs]).tolist() == list(range(32))


def test_accelerate_trains_with_our_loader(accelerator):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = rk.DataLoader(Line(), batch_size=8, shuffle=True, num_workers=2, seed=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(5):
        for x, y, _ in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 10


def test_accelerate_reads_ahead_and_feedback_is_about_the_batch_that_the_loop_has(accelerator):
    arguments = {"batch_size": 8, "shuffle": True, "seed": 1, "importance": rk.Buckets()}
    prepared = accelerator.prepare(rk.DataLoader(Line(), **arguments))
    alone = rk.DataLoader(Line(), **arguments)
    for _ in range(3):
        expected = []
        for batch in alone:
            expected.append(batch[2].tolist())
            alone.feedback(losses=batch[2] + 1.0)
        for batch in prepared:
            assert prepared.batch.ids.tolist() == batch[2].tolist() == expected.pop(0)
            prepared.feedback(losses=batch[2] + 1.0)
            measured = prepared.state_dict()["importance_state"]["measured"]
            assert same(measured["loss"], measured["ids"] + 1.0)
            assert set(batch[2].tolist()) <= set(measured["ids"].tolist())
        assert same(prepared.batch.ids, batch[2])


def test_a_pass_that_is_left_early_leaves_the_batch_that_the_loop_had(accelerator):
    prepared = accelerator.prepare(rk.DataLoader(Line(), batch_size=8, seed=1, shuffle=True))
    for _ in range(2):
        batch = next(iter(prepared))
        assert same(prepared.batch.ids, batch[2])


def test_importance_needs_feedback_through_accelerate_too(accelerator):
    prepared = accelerator.prepare(rk.DataLoader(Line(), batch_size=8, seed=1, importance=rk.Buckets()))
    list(prepared)
    with pytest.raises(rk.FeedbackError, match="no feedback was reported for epoch 0"):
        list(prepared)


def dispatched(**arguments):
    """What rank 0 of two has, which reads the batches of both."""
    from accelerate.data_loader import prepare_data_loader

    loader = rk.DataLoader(Line(), batch_size=4, seed=1, shuffle=True, **arguments)
    prepared = prepare_data_loader(
        loader, put_on_device=True, dispatch_batches=True, use_stateful_dataloader=True
    )
    prepared.state = types.SimpleNamespace(process_index=0, num_processes=2, device=torch.device("cpu"))
    return prepared


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_state_of_dispatched_batches_is_behind_those_that_the_loops_have(accelerator, at):
    iterator, left = iter(loader := dispatched()), []
    for _ in range(at):
        next(iterator)
    state = dict(loader.state_dict())
    left = list(iterator)
    resumed = dispatched()
    resumed.load_state_dict(state)
    assert same(list(resumed), left)


def test_importance_is_refused_where_accelerate_splits_the_batches(accelerator):
    with pytest.raises(rk.ArgumentError, match="dispatch_batches=False"):
        dispatched(importance=rk.Buckets())
