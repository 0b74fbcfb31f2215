"""Network outputs of images, row by row in the order of their ids; knows nothing of Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.data.loading import Backend, DataSplit, LoaderConfig, open_loader
from oscbench.errors import OscbenchError
from oscbench.features import Head
from oscbench.labels import IntArray
from oscbench.training.checkpoint import Checkpoint, load_weights
from oscbench.training.loop import Place
from oscbench.training.model import Classifier, EmbeddingLayer, OpenSetNetwork, build_network
from oscbench.training.proser import ProserNetwork


class Rows(NamedTuple):
    """Outputs of some samples, in the order asked for."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
    embedding: NDArray[np.float32]
    pooled: NDArray[np.float32]

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """All rows of several parts, one after the other."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True, kw_only=True)
class ExtractionJob:
    """What is needed to run a trained network over one split.

    Attributes:
        checkpoint: The file with the weights.
        network: Its architecture.
        n_outputs: C, which the file must have.
        n_known: K.
        what: Protocol and loss in words, for messages.
        split: The images.
        crop: Side of the network's input.
        stored_side: Shorter side of stored images.
        normalise: Whether the training normalised its images.
        batch_size: Images per forward pass.
        threads: CPU threads of each worker.
        loader: Which image loader, the same on all workers.
    """

    checkpoint: Path
    network: str
    n_outputs: int
    n_known: int
    what: str
    split: DataSplit
    crop: int
    stored_side: int
    normalise: bool = False
    batch_size: int = 64
    threads: int = 1
    loader: Backend = "pil"


def load_network(job: ExtractionJob) -> Classifier:
    """The trained network; a checkpoint of another width or architecture is refused with both values."""
    checkpoint, wanted = Checkpoint.load(job.checkpoint), f"{job.network} for {job.what}"
    return network_in(checkpoint, job.network, job.n_outputs, job.n_known, where=str(job.checkpoint), wanted=wanted)


def network_in(
    checkpoint: Checkpoint, network: str, n_outputs: int, n_known: int, *, where: str, wanted: str
) -> Classifier:
    """The network in a checkpoint, ready to answer; see ``load_weights`` for what is refused."""
    base = build_network(network, n_outputs, checkpoint.embedding_size)
    found = ProserNetwork(base, n_known, checkpoint.dummies) if checkpoint.dummies else base
    load_weights(found, checkpoint, where=where, wanted=wanted)
    return found.eval()


def network_head(job: ExtractionJob) -> Head | None:
    """The logits as one linear map of the pooled vector: nothing non-linear lies between the two last layers.

    ``None`` for a network with placeholders: the strongest of several is not linear.
    """
    network = load_network(job)
    if not isinstance(network, OpenSetNetwork):
        return None
    (embedding,) = (layer for layer in network.modules() if isinstance(layer, EmbeddingLayer))
    weights = (embedding.weight, embedding.bias, network.logits.weight)
    return Head.compose(*(weight.detach().double().numpy() for weight in weights))


def extract_rows(job: ExtractionJob, ids: IntArray, device: torch.device) -> Rows:
    """Outputs of the given samples, centre crop, in single precision on every device."""
    place = Place(device, mixed_precision=False)
    network = place.network(load_network(job))
    loader = open_loader(
        job.split,
        LoaderConfig(
            crop=job.crop,
            stored_side=job.stored_side,
            train=False,
            normalise=job.normalise,
            threads=job.threads,
            backend=job.loader,
        ),
    )
    torch.set_num_threads(job.threads)
    parts: list[Rows] = []
    try:
        with torch.inference_mode():
            for batch in loader.epoch(0, ids, job.batch_size):
                outputs = [output.float().cpu().numpy() for output in network(place.images(batch.images))]
                parts.append(Rows(batch.ids.numpy(), batch.labels.numpy(), *outputs))
    finally:
        loader.close()
    rows = Rows.joined(parts)
    _refuse_not_finite(rows, job)
    return rows


def _refuse_not_finite(rows: Rows, job: ExtractionJob) -> None:
    bad = np.flatnonzero(~np.isfinite(rows.logits).all(axis=1) | ~np.isfinite(rows.pooled).all(axis=1))
    if len(bad):
        raise OscbenchError(
            f"{job.checkpoint} gives NaN or infinity for sample {rows.ids[bad[0]]} ({len(bad)} such samples of "
            f"{job.what}); the weights are damaged, train again"
        )
