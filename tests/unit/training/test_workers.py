"""Two processes on one batch equal one process on all of it; no Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

from oscbench.data.loading import Batch
from oscbench.losses import LOSSES, TrainingClasses
from oscbench.training.loop import CriterionStep, Place, train_epoch, validate
from oscbench.training.model import EmbeddingLayer
from oscbench.training.workers import TorchWorkers, Workers

CPU = torch.device("cpu")
LABELS = [0, 1, 2, -1, 2, 0, -1]  # seven samples: workers have four and three, and unequal class weights
CLASSES = TrainingClasses(n_known=3, counts=(2, 1, 2), n_negative=2)


class Flat(nn.Module):
    """A network without batch statistics, the one thing that depends on who computes a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = EmbeddingLayer(12, 5), nn.Linear(5, 4, bias=False)
        rng = np.random.default_rng(0)  # not torch's global numbers, which other threads of the process may draw from
        for weights in self.parameters():
            weights.data = torch.from_numpy(rng.uniform(-0.3, 0.3, weights.shape)).float()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        embedding, pooled = self.embed(images.flatten(1))
        return self.out(embedding), embedding, pooled


def batches(rows: list[int], size: int) -> list[Batch]:
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(len(LABELS), 3, 2, 2))).float()
    parts = [torch.tensor(rows[start : start + size]) for start in range(0, len(rows), size)]
    return [Batch(images[part], torch.tensor(LABELS)[part], part) for part in parts]


def trained(workers: Workers, rows: list[int], size: int) -> tuple[float, list[Tensor], list[float]]:
    """Loss, weights and validation confidences after three steps on the same samples."""
    network, criterion = Flat(), LOSSES.get("garbage").build(CLASSES, LOSSES.info("garbage").params())
    wrapped = workers.wrap(network, CPU)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    loss = train_epoch(
        wrapped,
        [batches(rows, size)] * 3,
        CriterionStep(criterion),
        optimizer,
        place=Place(CPU),
        workers=workers,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        rate_at_step=lambda step: 0.5,
        epoch=0,
    )
    found = validate(network, iter(batches(rows, size)), criterion, 3, Place(CPU), workers)
    assert found.ids.tolist() == list(range(len(LABELS)))
    return loss, [value.detach() for value in network.parameters()], found.confidence.tolist()


def _process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    workers = TorchWorkers()
    own = [[0, 1, 2, 3], [4, 5, 6]][rank]
    results = [trained(workers, own, size) for size in (4, 2)]  # one batch per step, and two accumulated ones
    statistics = nn.BatchNorm1d(2)
    statistics.running_mean.fill_(float(rank))
    workers.average_buffers_(statistics)
    torch.save((results, statistics.running_mean), f"{folder}/{rank}.pth")
    dist.barrier()  # nobody closes a connection that the other still reads from
    dist.destroy_process_group()


def test_two_workers_equal_one_on_the_whole_batch(tmp_path: Path) -> None:
    multiprocessing.spawn(_process, (str(tmp_path),), nprocs=2)
    loss, weights, confidences = trained(Workers(), list(range(7)), 7)
    for rank in range(2):
        results, mean = torch.load(tmp_path / f"{rank}.pth", weights_only=True)
        assert mean.tolist() == [0.5, 0.5]
        for other_loss, other_weights, other_confidences in results:
            assert other_loss == pytest.approx(loss, rel=1e-5)
            assert other_confidences == pytest.approx(confidences, rel=1e-5)
            for one, other in zip(weights, other_weights, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
