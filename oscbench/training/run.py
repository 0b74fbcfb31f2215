"""A whole training on one of its workers: starts or goes on, epoch by epoch; knows nothing of Ray."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from oscbench.data.loading import Batch, DataSplit, ImageLoader, LoaderConfig, RandAugment, open_loader
from oscbench.errors import OscbenchError, UsageError
from oscbench.training.allocator import reuse_freed_memory
from oscbench.training.checkpoint import LAST, Checkpoint, CheckpointOrigin, load_weights, publish_best
from oscbench.training.epoch_metrics import EPOCHS, EpochRow, selection_score, validation_metrics, write_epochs
from oscbench.training.job import TrainingJob
from oscbench.training.loop import Place, train_epoch, validate
from oscbench.training.order import epoch_order, evaluation_shard, worker_shares
from oscbench.training.recipes import TrainConfig
from oscbench.training.workers import Workers


def run_training(
    job: TrainingJob,
    workers: Workers,
    device: torch.device,
    report: Callable[[tuple[EpochRow, ...]], None] = lambda history: None,
) -> tuple[EpochRow, ...]:
    """Trains to the end, from the last checkpoint where there is one; returns a row per epoch.

    On CPUs the weights after each epoch depend only on the job and its thread count, not on interruptions: the
    order and the augmentation are functions of (seed, epoch), everything else is in the checkpoint.

    Args:
        job: The same on all workers.
        workers: The processes that train together.
        device: This worker's.
        report: Called on every worker with all epochs so far: after each, when its checkpoint is safe, and at the
            start where some are done already.
    """
    if job.config.sync_batchnorm and device.type == "cpu":
        raise UsageError("--sync-batchnorm works on GPUs only; leave it out or set --gpus-per-worker")
    if device.type == "cpu":
        reuse_freed_memory()
    with _repeatable(job.threads, device):
        session = _Session(job, workers, device)
        try:
            if session.history:
                report(session.history)
            while not session.finished:
                session.next_epoch()
                report(session.history)
        finally:
            session.close()
    return session.history


@contextlib.contextmanager
def _repeatable(threads: int, device: torch.device) -> Iterator[None]:
    """A fixed number of threads and, on CPUs, algorithms that always add in the same order; GPUs take the fastest.

    Torch would then also fill every new tensor with NaN, to show who reads what nobody wrote: a twentieth of a step.
    """
    filling: Any = torch.utils.deterministic
    threads_before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill, benchmark = filling.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(device.type == "cpu")
    filling.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(deterministic)
        filling.fill_uninitialized_memory = fill
        torch.backends.cudnn.benchmark = benchmark


class _Session:
    """State of one worker between epochs."""

    def __init__(self, job: TrainingJob, workers: Workers, device: torch.device) -> None:
        self.job, self.workers = job, workers
        self.place = Place(device, job.config.mixed_precision)
        self.network = self.place.network(job.task.network(job))
        if job.config.sync_batchnorm:
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
        self.optimizer = _optimizer(self.network, job.config)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.place.half)
        self.step, self.criterion = job.task.step(job), job.task.criterion(job)
        self.train_ids = job.train_ids
        self.history: tuple[EpochRow, ...] = ()
        self.best_score, self.best_epoch = -math.inf, 0
        self._resume()
        if len(set(workers.gather(len(self.history)))) > 1:
            raise RuntimeError("workers read different checkpoints; a former worker was still writing")
        self.wrapped = workers.wrap(self.network, device)
        self.train_loader = self._open(job.train, train=True)
        self.val_loader = self._open(job.val, train=False)
        shows = job.tensorboard and workers.rank == 0
        self.board = open_board(job.folder / "tensorboard", first_epoch=len(self.history) + 1) if shows else None

    @property
    def finished(self) -> bool:
        """Whether the last epoch is done or the patience is over."""
        recipe, done = self.job.config.recipe, len(self.history)
        out_of_patience = recipe.patience is not None and done - self.best_epoch >= recipe.patience
        return done >= recipe.epochs or (done > 0 and out_of_patience)

    def next_epoch(self) -> None:
        """Trains and validates one epoch; on return its checkpoint is on disk."""
        epoch, started = len(self.history), time.perf_counter()
        loss, n_images = self._train(epoch)
        trained = time.perf_counter()
        metrics = self._validate(epoch)
        row: EpochRow = {
            "epoch": epoch + 1,
            "learning_rate": self.job.config.recipe.rate_at(epoch + 0.5),
            "train_loss": loss,
            **metrics,
            "images_per_second": n_images / (trained - started),
            "train_seconds": trained - started,
            "seconds": time.perf_counter() - started,
        }
        self.history = (*self.history, row)
        if selection_score(metrics) > self.best_score:
            self.best_score, self.best_epoch = selection_score(metrics), epoch + 1
        if self.workers.rank == 0:
            self._save(epoch + 1)
        if self.board is not None:
            for name, value in row.items():
                self.board.add_scalar(name, value, epoch + 1)

    def close(self) -> None:
        """Ends the loaders' threads."""
        self.train_loader.close()
        self.val_loader.close()
        if self.board is not None:
            self.board.close()

    def _train(self, epoch: int) -> tuple[float, int]:
        job, workers = self.job, self.workers
        if job.task.fresh_optimizer:
            self.optimizer = _optimizer(self.network, job.config)
        seeds = np.random.SeedSequence((job.config.seed, epoch, workers.rank))
        torch.manual_seed(int(seeds.generate_state(1)[0]))  # for networks with dropout
        recipe, size = job.config.recipe, job.config.recipe.batch_size
        order = epoch_order(self.train_ids, job.config.seed, epoch)
        shares = worker_shares(
            order, workers.rank, workers.size, size, job.config.accumulate, fewest=job.task.fewest_rows(job)
        )
        batches = self.train_loader.epoch(epoch, np.concatenate(shares), size)
        n_steps = len(shares)
        loss = train_epoch(
            self.wrapped,
            _grouped(batches, [math.ceil(len(share) / size) for share in shares]),
            self.step,
            self.optimizer,
            place=self.place,
            workers=workers,
            scaler=self.scaler,
            rate_at_step=lambda step: recipe.rate_at(epoch + (step + 0.5) / n_steps),
            epoch=epoch,
        )
        workers.average_buffers_(self.network)
        return loss, min(len(self.train_ids), n_steps * size * job.config.accumulate * workers.size)

    def _validate(self, epoch: int) -> EpochRow:
        shard = evaluation_shard(np.arange(len(self.job.val)), self.workers.rank, self.workers.size)
        batches = self.val_loader.epoch(0, shard, self.job.config.recipe.batch_size)
        found = validate(self.network, batches, self.criterion, self.job.n_known, self.place, self.workers)
        if not np.isfinite(found.loss).all():
            raise OscbenchError(
                f"the weights after the last step of epoch {epoch + 1} give a loss that is not finite; stopped, the "
                f"checkpoint of epoch {epoch} stays; lower the learning rate"
            )
        return validation_metrics(found, n_outputs=self.network.n_outputs, n_known=self.job.n_known)

    def _open(self, split: DataSplit, *, train: bool) -> ImageLoader:
        config, recipe = self.job.config, self.job.config.recipe
        augment = (
            RandAugment(operations=recipe.randaugment[0], magnitude=recipe.randaugment[1])
            if recipe.randaugment
            else None
        )
        return open_loader(
            split,
            LoaderConfig(
                crop=config.crop,
                stored_side=config.stored_side,
                train=train,
                seed=config.seed,
                randaugment=augment,
                normalise=recipe.normalise,
                threads=self.job.threads,
                backend=self.job.loader,
            ),
        )

    def _save(self, epoch: int) -> None:
        Checkpoint(
            epoch=epoch,
            model=self.network.state_dict(),
            optimizer=self.optimizer.state_dict(),
            best_score=self.best_score,
            best_epoch=self.best_epoch,
            scaler=self.scaler.state_dict(),
            history=self.history,
            fingerprint=self.job.fingerprint,
            origin=CheckpointOrigin(what=self.job.what, samples=self.job.samples, config=self.job.config),
        ).save(self.job.folder / LAST)
        self._publish(epoch)

    def _publish(self, epoch: int) -> None:
        """What can be derived from the last checkpoint: the best one and the table."""
        if self.best_epoch == epoch:
            publish_best(self.job.folder)
        write_epochs(self.job.folder / EPOCHS, self.history)

    def _resume(self) -> None:
        path = self.job.folder / LAST
        if not path.exists():
            return
        found = Checkpoint.load(path)
        if found.fingerprint != self.job.fingerprint:
            raise UsageError(
                f"{path} belongs to another training ({found.fingerprint or 'not of this program'}), this one is "
                f"{self.job.fingerprint}; choose another --runs folder"
            )
        load_weights(self.network, found, where=str(path), wanted=self.job.what)
        self.optimizer.load_state_dict(dict(found.optimizer))
        if found.scaler:
            self.scaler.load_state_dict(dict(found.scaler))
        self.history, self.best_score, self.best_epoch = found.history, found.best_score, found.best_epoch
        if self.workers.rank == 0:  # a kill may have come between the checkpoint and these
            self._publish(found.epoch)


def _optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    recipe = config.recipe
    if recipe.optimizer == "adam":
        return torch.optim.Adam(
            network.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.999), weight_decay=recipe.weight_decay
        )
    return torch.optim.SGD(
        network.parameters(), lr=recipe.learning_rate, momentum=0.9, weight_decay=recipe.weight_decay
    )


def _grouped(batches: Iterator[Batch], sizes: list[int]) -> Iterator[list[Batch]]:
    """The next ``size`` batches for each size; the iterator is exhausted or closed, so that loaders end their work."""
    for size in sizes:
        yield list(islice(batches, size))
    for _ in batches:
        raise AssertionError("the loader gave more batches than were asked for")


def open_board(folder: Path, first_epoch: int) -> Any:
    """A TensorBoard writer; epochs from ``first_epoch`` on that an interrupted run has left there are dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--tensorboard needs the package tensorboard; install it or leave the option out") from error
    return SummaryWriter(str(folder), purge_step=first_epoch)
