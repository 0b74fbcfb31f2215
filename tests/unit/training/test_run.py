"""A whole training in this process: it learns, repeats itself, resumes exactly and stops cleanly."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_images import small_labels, write_split

from oscbench.errors import OscbenchError, UsageError
from oscbench.postprocessors.proser import RECIPES, ProserParams
from oscbench.training.checkpoint import BEST, LAST, Checkpoint
from oscbench.training.epoch_metrics import EPOCHS, read_epochs
from oscbench.training.job import LossTask, TrainingJob
from oscbench.training.proser import ProserTask, SharedTask
from oscbench.training.recipes import Recipe, TrainConfig
from oscbench.training.run import _Session, run_training
from oscbench.training.workers import Workers

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    root = tmp_path_factory.mktemp("images")
    train = write_split(root, "train", small_labels(4, 12, 11))
    return train, write_split(root, "val", small_labels(4, 6, 9))


def job(images: tuple, folder: Path, *, loss: str = "softmax", **recipe: object) -> TrainingJob:
    settings = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-3} | recipe
    config = TrainConfig(loss=loss, network="tiny", crop=28, stored_side=32, recipe=Recipe(**settings))
    folder.mkdir(parents=True, exist_ok=True)
    return TrainingJob(
        config=config, folder=folder, train=images[0], val=images[1], n_known=4, what=f"loss {loss}", fingerprint="f1"
    )


def weights(folder: Path, name: str = LAST) -> dict[str, torch.Tensor]:
    return dict(Checkpoint.load(folder / name).model)


def assert_same_weights(first: dict, second: dict) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("loss", ["softmax", "garbage", "eos", "objectosphere"])
def test_each_loss_learns_the_small_images(images: tuple, tmp_path: Path, loss: str) -> None:
    rows = run_training(job(images, tmp_path, loss=loss, epochs=16), Workers(), CPU)
    assert rows[-1]["val_accuracy"] > 0.6
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert Checkpoint.load(tmp_path / LAST).n_outputs == (5 if loss == "garbage" else 4)
    table = read_epochs(tmp_path / EPOCHS)
    assert [row["epoch"] for row in table] == [*range(1, 17)]
    assert table[-1]["gamma"] == pytest.approx(rows[-1]["gamma"], rel=1e-5)


def test_a_run_repeats_itself_and_another_seed_does_not(images: tuple, tmp_path: Path) -> None:
    jobs = [job(images, tmp_path / name, epochs=1) for name in ("a", "b", "c")]
    jobs[2] = dataclasses.replace(jobs[2], config=dataclasses.replace(jobs[2].config, seed=1))
    for one in jobs:
        run_training(one, Workers(), CPU)
    assert_same_weights(weights(tmp_path / "a"), weights(tmp_path / "b"))
    name = "logits.weight"
    assert not torch.equal(weights(tmp_path / "a")[name], weights(tmp_path / "c")[name])


def test_an_interrupted_run_ends_with_the_same_weights_bit_by_bit(images: tuple, tmp_path: Path) -> None:
    whole, parts = job(images, tmp_path / "whole", loss="eos"), job(images, tmp_path / "parts", loss="eos")
    run_training(whole, Workers(), CPU)

    def interrupt(history: tuple[dict, ...]) -> None:
        if len(history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(parts, Workers(), CPU, interrupt)
    assert len(read_epochs(tmp_path / "parts" / EPOCHS)) == 2
    reports: list[tuple[dict, ...]] = []
    rows = run_training(parts, Workers(), CPU, reports.append)
    assert [[row["epoch"] for row in history] for history in reports] == [[1, 2], [1, 2, 3]]
    assert reports[-1] == rows
    assert run_training(parts, Workers(), CPU, reports.append) == rows  # finished: what there is, and nothing more
    assert reports[2:] == [rows]
    assert_same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    first, second = (Checkpoint.load(tmp_path / name / LAST).optimizer["state"] for name in ("whole", "parts"))
    assert all(torch.equal(first[key]["exp_avg_sq"], second[key]["exp_avg_sq"]) for key in first)


def test_what_a_kill_left_out_after_the_checkpoint_is_made_up(images: tuple, tmp_path: Path) -> None:
    run_training(job(images, tmp_path, epochs=1), Workers(), CPU)
    (tmp_path / EPOCHS).unlink()
    (tmp_path / BEST).unlink()
    run_training(job(images, tmp_path, epochs=1), Workers(), CPU)
    assert len(read_epochs(tmp_path / EPOCHS)) == 1
    assert_same_weights(weights(tmp_path, BEST), weights(tmp_path))


def test_best_checkpoint_is_that_of_the_largest_gamma(images: tuple, tmp_path: Path) -> None:
    rows = run_training(job(images, tmp_path, epochs=4, learning_rate=0.05), Workers(), CPU)
    gammas = [row["gamma"] for row in rows]
    best = Checkpoint.load(tmp_path / BEST)
    assert best.epoch == best.best_epoch == int(np.argmax(gammas)) + 1
    assert best.best_score == max(gammas)


def test_early_stopping_counts_epochs_without_a_better_gamma(images: tuple, tmp_path: Path) -> None:
    one = job(images, tmp_path, epochs=30, learning_rate=1e-9, patience=2)
    rows = run_training(one, Workers(), CPU)
    best = int(np.argmax([row["gamma"] for row in rows])) + 1
    assert len(rows) == best + 2 < 30
    again = run_training(one, Workers(), CPU)  # a finished run does nothing more
    assert repr(again) == repr(rows)  # a rate that is not reached is NaN, which equals nothing


def test_a_loss_that_is_not_finite_stops_and_names_the_step(images: tuple, tmp_path: Path) -> None:
    one = job(images, tmp_path, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        run_training(one, Workers(), CPU, _interrupt)
    before = weights(tmp_path)

    class Broken:
        def losses(self, logits: torch.Tensor, embedding: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return logits.sum(dim=1) * (math.nan if self.calls == 2 else 1.0)

        def weights(self, labels: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(labels))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossTask, "criterion", lambda task, job: Broken())
        with pytest.raises(OscbenchError, match=r"nan in epoch 2, step 2; .* epoch 1 stays"):
            run_training(one, Workers(), CPU)
    assert_same_weights(weights(tmp_path), before)


def _interrupt(history: tuple[dict, ...]) -> None:
    raise KeyboardInterrupt


def test_weights_gone_wrong_in_the_last_step_are_not_saved(images: tuple, tmp_path: Path) -> None:
    with pytest.raises(OscbenchError, match="not finite|became"):
        run_training(job(images, tmp_path, learning_rate=1e30, optimizer="sgd", batch_size=64), Workers(), CPU)
    assert not (tmp_path / LAST).exists()


def test_gradient_accumulation_equals_the_large_batch(images: tuple, tmp_path: Path) -> None:
    """Without batch statistics two batches of 8 are one of 16; garbage has unequal weights, so means differ."""
    from oscbench.data.loading import LoaderConfig, open_loader
    from oscbench.training.loop import Place, train_epoch
    from oscbench.training.model import EmbeddingLayer

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = EmbeddingLayer(3 * 28 * 28, 6), torch.nn.Linear(6, 5, bias=False)

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
            embedding, pooled = self.embed(images.flatten(1))
            return self.out(embedding), embedding, pooled

    loader = open_loader(images[0], LoaderConfig(crop=28, stored_side=32, train=False))
    results = []
    for size in (16, 8):
        torch.manual_seed(0)
        network = Flat().double()
        batches = [
            dataclasses.replace(batch, images=batch.images.double()) for batch in loader.epoch(0, np.arange(16), size)
        ]
        garbage = job(images, tmp_path, loss="garbage")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        train_epoch(
            network,
            [batches],
            garbage.task.step(garbage),
            optimizer,
            place=Place(CPU),
            workers=Workers(),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            rate_at_step=lambda step: 0.1,
            epoch=0,
        )
        results.append(network.out.weight.detach().clone())
    loader.close()
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-9)  # loss weights are single precision


def test_a_checkpoint_of_another_training_is_not_continued(images: tuple, tmp_path: Path) -> None:
    one = job(images, tmp_path, epochs=1)
    run_training(one, Workers(), CPU)
    with pytest.raises(UsageError, match=r"another training \(f1\), this one is f2"):
        run_training(dataclasses.replace(one, fingerprint="f2"), Workers(), CPU)


def test_initial_weights_of_another_width_are_refused_with_both(images: tuple, tmp_path: Path) -> None:
    run_training(job(images, tmp_path / "a", loss="garbage", epochs=1), Workers(), CPU)
    other = dataclasses.replace(job(images, tmp_path / "b"), init=tmp_path / "a" / LAST)
    with pytest.raises(UsageError, match=r"loss garbage\) has 5 outputs .* needs 4"):
        run_training(other, Workers(), CPU)


def test_training_starts_from_the_given_checkpoint(images: tuple, tmp_path: Path) -> None:
    run_training(job(images, tmp_path / "a", epochs=1), Workers(), CPU)
    one = dataclasses.replace(
        job(images, tmp_path / "b", epochs=1, learning_rate=1e-12, optimizer="sgd"), init=tmp_path / "a" / LAST
    )
    run_training(one, Workers(), CPU)
    name = "resnet_base.layer1.conv1.weight"
    torch.testing.assert_close(weights(tmp_path / "a")[name], weights(tmp_path / "b")[name])


def test_shared_batch_statistics_are_refused_on_cpus(images: tuple, tmp_path: Path) -> None:
    one = job(images, tmp_path)
    one = dataclasses.replace(one, config=dataclasses.replace(one.config, sync_batchnorm=True))
    with pytest.raises(UsageError, match="GPUs only"):
        run_training(one, Workers(), CPU)


def test_tensorboard_files_appear_on_demand(images: tuple, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_training(dataclasses.replace(job(images, tmp_path, epochs=1), tensorboard=True), Workers(), CPU)
    assert list((tmp_path / "tensorboard").glob("events.out.*"))


# --- fine-tuning -------------------------------------------------------------------------------------------------

TASKS = {
    "published": ProserTask(ProserParams(dummies=3)),
    "authors": ProserTask(ProserParams(dummies=3, **RECIPES["authors"])),
    "side by side": SharedTask(ProserParams(trunk="frozen"), (1, 3)),
}


def fine_tuning(images: tuple, folder: Path, task: ProserTask) -> TrainingJob:
    """Of a base network that is the same for all who ask."""
    base = folder.parent / "base"
    if not base.exists():
        run_training(job(images, base, epochs=1), Workers(), CPU)
    return dataclasses.replace(
        job(images, folder, optimizer="sgd", learning_rate=0.05, batch_size=8), init=base / LAST, task=task
    )


@pytest.mark.parametrize("name", list(TASKS))
def test_an_interrupted_fine_tuning_ends_with_the_same_weights_bit_by_bit(
    images: tuple, tmp_path: Path, name: str
) -> None:
    run_training(fine_tuning(images, tmp_path / "whole", TASKS[name]), Workers(), CPU)
    parts = fine_tuning(images, tmp_path / "parts", TASKS[name])

    def interrupt(history: tuple[dict, ...]) -> None:
        if len(history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(parts, Workers(), CPU, interrupt)
    assert len(read_epochs(tmp_path / "parts" / EPOCHS)) == 2
    assert len(run_training(parts, Workers(), CPU)) == 3
    assert_same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.parametrize(("kind", "anew"), [("published", False), ("authors", True)])
def test_the_authors_optimiser_starts_anew_with_each_epoch(
    images: tuple, tmp_path: Path, kind: Any, anew: bool
) -> None:
    session = _Session(
        fine_tuning(images, tmp_path / "run", ProserTask(ProserParams(fine_tuning=kind))), Workers(), CPU
    )
    optimizers = []
    for _ in range(2):
        session.next_epoch()
        optimizers.append(session.optimizer)
    session.close()
    assert (optimizers[0] is not optimizers[1]) == anew
