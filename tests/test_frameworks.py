"""Real Lightning trains with our loader, and it stays ours."""

import contextlib
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, SequentialSampler

import rekindle as rk
from framework_loaders import OWN_ARGUMENTS, Line, import_frameworks, own_arguments, updated
from same import same


@pytest.fixture(autouse=True, scope="module")
def _frameworks():
    import_frameworks()


# Lightning.


@pytest.fixture
def trainer_of(tmp_path):
    with warnings.catch_warnings():
        # Advice of Lightning's about the number of workers and the like, and its own deprecated calls.
        warnings.simplefilter("ignore")
        import lightning

        def trainer(**arguments):
            return lightning.Trainer(
                accelerator="cpu",
                devices=1,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=tmp_path,
                **arguments,
            )

        yield trainer


def line_to_fit():
    from lightning_fit import Fit

    return Fit()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lightning_trains_with_our_batches(trainer_of, num_workers):
    loader = rk.DataLoader(
        Line(), batch_size=8, shuffle=True, num_workers=num_workers, seed=3, persistent_workers=False
    )
    alone = rk.DataLoader(Line(), batch_size=8, shuffle=True, seed=3)
    expected = [(epoch, batch[2].tolist()) for epoch in range(2) for batch in alone]
    model = line_to_fit()
    trainer = trainer_of(max_epochs=2)
    trainer.fit(model, loader)
    assert model.seen == expected
    assert trainer.train_dataloader is loader
    assert loader.report().batches == 8


def test_lightning_may_limit_the_batches_of_an_epoch(trainer_of):
    loader = rk.DataLoader(Line(), batch_size=4, num_workers=2)
    model = line_to_fit()
    trainer = trainer_of(max_epochs=2, limit_train_batches=3)
    trainer.fit(model, loader)
    assert model.seen == [(epoch, list(range(start, start + 4))) for epoch in range(2) for start in (0, 4, 8)]


def test_lightning_keeps_our_bad_sample_policy(trainer_of):
    loader = rk.DataLoader(Line(bad=(5,)), batch_size=8, num_workers=2, on_error="skip", error_budget=0.1)
    model = line_to_fit()
    trainer_of(max_epochs=1).fit(model, loader)
    assert sorted(i for _, ids in model.seen for i in ids) == [i for i in range(32) if i != 5]


def test_lightning_saves_where_the_loader_stands_and_resumes_there(trainer_of):
    def run(model, loader, state=None, stop=None):
        if state is not None:
            loader.load_state_dict(state)
        trainer = trainer_of(max_epochs=1, limit_train_batches=stop or 1.0)
        trainer.fit(model, loader)
        return [ids for _, ids in model.seen]

    def loader():
        return rk.DataLoader(Line(), batch_size=8, shuffle=True, seed=9)

    whole = run(line_to_fit(), loader())
    first = loader()
    begun = run(line_to_fit(), first, stop=2)
    assert begun == whole[:2]
    assert run(line_to_fit(), loader(), state=first.state_dict()) == whole[2:]


class SavesAt:
    """A callback that saves a checkpoint, after a batch of an epoch or at its end, and stops."""

    def __new__(cls, at, path, epoch=0):
        import lightning

        class Saves(lightning.Callback):
            def on_train_batch_end(self, trainer, module, outputs, batch, step):
                if step + 1 == at and trainer.current_epoch == epoch:
                    trainer.save_checkpoint(path)
                    raise KeyboardInterrupt

            def on_train_epoch_end(self, trainer, module):
                if at == "the end" and trainer.current_epoch == epoch:
                    trainer.save_checkpoint(path)
                    trainer.should_stop = True

        return Saves()


@pytest.mark.parametrize("at", [2, 4, "the end"])
@pytest.mark.parametrize("options", [{"seed": 9}, {"num_workers": 1}], ids=["a seed", "no seed, a worker"])
def test_lightning_resumes_our_loader_from_its_own_checkpoints(trainer_of, tmp_path, at, options):
    """Within an epoch, at its last batch, and at its end, where Lightning does not load what it has saved."""

    def loader():
        return rk.DataLoader(Line(), batch_size=8, shuffle=True, **options)

    path = tmp_path / "checkpoint"
    first, resumed = line_to_fit(), line_to_fit()
    begun = loader()
    with contextlib.suppress(SystemExit):  # What Lightning makes of an interrupt.
        trainer_of(max_epochs=3, callbacks=[SavesAt(at, path)]).fit(first, begun)
    trainer_of(max_epochs=3).fit(resumed, loader(), ckpt_path=path)
    alone = rk.DataLoader(Line(), batch_size=8, shuffle=True, seed=int(begun.seed))
    assert first.seen + resumed.seen == [(epoch, batch[2].tolist()) for epoch in range(3) for batch in alone]


@pytest.mark.parametrize("at", [1, 2, "the end"])
def test_lightning_resumes_the_epoch_of_a_distributed_sampler(trainer_of, tmp_path, at):
    """Which it tells the sampler only after it has asked the loader for an iterator."""

    def loader():
        sampler = DistributedSampler(Line(), num_replicas=2, rank=1, seed=3)
        return rk.DataLoader(Line(), batch_size=8, sampler=sampler, seed=9)

    path = tmp_path / "checkpoint"
    whole, first, resumed = line_to_fit(), line_to_fit(), line_to_fit()
    trainer_of(max_epochs=3, use_distributed_sampler=False).fit(whole, loader())
    with contextlib.suppress(SystemExit):
        saves = SavesAt(at, path, epoch=1)
        trainer_of(max_epochs=3, use_distributed_sampler=False, callbacks=[saves]).fit(first, loader())
    trainer_of(max_epochs=3, use_distributed_sampler=False).fit(resumed, loader(), ckpt_path=path)
    assert len({str(ids) for _, ids in whole.seen}) == len(whole.seen) == 6
    assert first.seen + resumed.seen == whole.seen


@pytest.mark.parametrize(
    ("mode", "at"),
    [
        ("min_size", 2),
        *(("max_size", at) for at in (1, 2, 3)),
        *(("max_size_cycle", at) for at in (3, 4, "the end")),
    ],
)
def test_lightning_resumes_several_loaders_of_other_lengths(trainer_of, tmp_path, mode, at):
    """One of which may be at its end, or begun again, while the other goes on."""
    from lightning.pytorch.utilities import CombinedLoader

    from lightning_fit import FitSeveral

    def loaders():
        sizes = {"short": 16, "long": 32}
        ours = {name: rk.DataLoader(Line(size), 8, shuffle=True, seed=9) for name, size in sizes.items()}
        return CombinedLoader(ours, mode)

    path = tmp_path / "checkpoint"
    whole, first, resumed = FitSeveral(), FitSeveral(), FitSeveral()
    trainer_of(max_epochs=3).fit(whole, loaders())
    with contextlib.suppress(SystemExit):
        trainer_of(max_epochs=3, callbacks=[SavesAt(at, path)]).fit(first, loaders())
    trainer_of(max_epochs=3).fit(resumed, loaders(), ckpt_path=path)
    assert first.seen + resumed.seen == whole.seen


class Sizes(rk.ImportanceMethod):
    """Chooses so many samples in an epoch."""

    needs_feedback = False

    def __init__(self, *sizes):
        self.sizes = sizes

    def plan(self, epoch, scores):
        return np.arange(self.sizes[epoch]), None


@pytest.mark.parametrize("sizes", [(32, 16, 24), (16, 32, 8)])
def test_lightning_has_all_batches_and_the_validation_of_epochs_of_other_lengths(trainer_of, sizes):
    model = line_to_fit()
    loader = rk.DataLoader(Line(), batch_size=8, seed=9, importance=Sizes(*sizes))
    trainer_of(max_epochs=3, num_sanity_val_steps=0).fit(model, loader, rk.DataLoader(Line(), batch_size=32))
    assert [epoch for epoch, _ in model.seen] == [n for n in range(3) for _ in range(sizes[n] // 8)]
    assert model.validated == [0, 1, 2]


def test_a_loader_that_lightning_begins_again_within_an_epoch_has_other_orders_each_time(trainer_of):
    from lightning.pytorch.utilities import CombinedLoader

    from lightning_fit import FitSeveral

    loaders = [rk.DataLoader(Line(size), 8, shuffle=True, seed=9) for size in (16, 48)]
    model = FitSeveral()
    trainer_of(max_epochs=2).fit(
        model, CombinedLoader(dict(zip("ab", loaders, strict=True)), "max_size_cycle")
    )
    passes = [str(ids["a"]) for _, ids in model.seen]
    assert len(passes) == len(set(passes)) == 2 * 6


def test_lightning_goes_on_with_a_loader_that_its_checkpoint_does_not_fit(trainer_of, tmp_path):
    """Between two epochs, as with torch's loader: the next epoch, and not the first again."""
    path = tmp_path / "checkpoint"
    loader = rk.DataLoader(Line(), batch_size=8, shuffle=True, seed=9)
    trainer_of(max_epochs=2, callbacks=[SavesAt("the end", path)]).fit(line_to_fit(), loader)
    model, other = line_to_fit(), rk.DataLoader(Line(), batch_size=4, shuffle=True, seed=9)
    with pytest.warns(UserWarning, match="begins epoch 1 without it. batch_size"):
        trainer_of(max_epochs=2).fit(model, other, ckpt_path=path)
    alone = rk.DataLoader(Line(), batch_size=4, shuffle=True, seed=9)
    alone.set_epoch(1)
    assert model.seen == [(1, batch[2].tolist()) for batch in alone]


@pytest.mark.parametrize("framework", ["fabric", "pytorch"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["from attributes", "from saved arguments"])
def test_lightning_recreates_our_loader_with_all_of_its_arguments(framework, wrapped):
    from lightning.fabric.utilities.data import _replace_dunder_methods

    def make():
        return rk.DataLoader(Line(), batch_size=4, num_workers=2, drop_last=True, **OWN_ARGUMENTS)

    if wrapped:  # As in a hook of the user's module: Lightning notes the arguments themselves.
        with _replace_dunder_methods(torch.utils.data.DataLoader, "dataset"):
            loader = make()
    else:
        loader = make()
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=1, shuffle=False)
    again = updated(framework, loader, sampler)
    assert type(again) is rk.DataLoader
    assert again is not loader
    assert own_arguments(again) == OWN_ARGUMENTS
    assert (again.batch_size, again.num_workers, again.drop_last) == (4, 2, True)
    assert again.sampler is sampler
    assert torch.cat([batch[2] for batch in again]).tolist() == list(range(1, 32, 2))


@pytest.mark.parametrize("framework", ["fabric", "pytorch"])
def test_lightning_recreates_a_loader_of_defaults(framework):
    loader = rk.DataLoader(Line(), batch_size=4, shuffle=True)
    again = updated(framework, loader, SequentialSampler(loader.dataset))
    assert type(again) is rk.DataLoader
    assert own_arguments(again) == own_arguments(loader)
    assert torch.cat([batch[2] for batch in again]).tolist() == list(range(32))


@pytest.mark.filterwarnings("ignore")
def test_fabric_sets_our_loader_up():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    loader = rk.DataLoader(Line(), batch_size=8, shuffle=True, **OWN_ARGUMENTS)
    prepared = fabric.setup_dataloaders(loader)
    ours = rk.DataLoader(Line(), batch_size=8, shuffle=True, **OWN_ARGUMENTS)
    assert same([batch[2] for batch in prepared], [batch[2] for batch in ours])


# Accelerate.


@pytest.fixture
def accelerator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate import Accelerator

        return Accelerator(cpu=True)


def test_a_seed_that_was_drawn_is_not_given_to_a_loader_made_again(accelerator):
    """It takes over the seed of a state; a seed that was given, it refuses to change."""

    def by_accelerate(**seed):
        return accelerator.prepare(rk.DataLoader(Line(), batch_size=8, **seed))

    def by_lightning(**seed):
        return updated("pytorch", rk.DataLoader(Line(), batch_size=8, **seed), SequentialSampler(Line()))

    for made in (by_accelerate, by_lightning):
        state, again = made().state_dict(), made()
        again.load_state_dict(state)
        assert again.seed == state["seed"]
        with pytest.raises(rk.StateError, match="seed"):
            made(seed=1).load_state_dict(state)
