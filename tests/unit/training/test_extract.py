"""Extraction in this process: rows in the order asked for, equal to the network's own outputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_images import small_labels, write_split

from oscbench.data.loading import LoaderConfig, open_loader
from oscbench.errors import OscbenchError, UsageError
from oscbench.training.checkpoint import Checkpoint
from oscbench.training.extract import ExtractionJob, Rows, extract_rows
from oscbench.training.model import build_network

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> ExtractionJob:
    root = tmp_path_factory.mktemp("extract")
    torch.manual_seed(0)
    network = build_network("tiny", 4, embedding_size=6)
    Checkpoint(epoch=1, model=network.state_dict()).save(root / "w.pth")
    split = write_split(root, "test", [*small_labels(4, 3, 4), -2, -2, -2])
    return ExtractionJob(
        checkpoint=root / "w.pth",
        network="tiny",
        n_outputs=4,
        n_known=4,
        what="a test",
        split=split,
        crop=28,
        stored_side=32,
    )


def test_rows_are_the_outputs_of_the_network_one_by_one(job: ExtractionJob) -> None:
    rows = extract_rows(dataclasses.replace(job, batch_size=4), np.arange(len(job.split)), CPU)
    np.testing.assert_array_equal(rows.ids, np.arange(len(job.split)))
    np.testing.assert_array_equal(rows.labels, job.split.samples.labels)
    network = build_network("tiny", 4, embedding_size=6).eval()
    network.load_state_dict(dict(Checkpoint.load(job.checkpoint).model))
    loader = open_loader(job.split, LoaderConfig(crop=28, stored_side=32, train=False))
    with torch.no_grad():
        for place, batch in enumerate(loader.epoch(0, np.arange(len(job.split)), 1)):
            for expected, found in zip(network(batch.images), (rows.logits, rows.embedding, rows.pooled), strict=True):
                np.testing.assert_allclose(found[place], expected[0], rtol=1e-4, atol=1e-5)
    loader.close()
    assert (rows.logits.dtype, rows.embedding.shape[1], rows.pooled.shape[1]) == (np.float32, 6, 128)


def test_shards_join_to_the_whole(job: ExtractionJob) -> None:
    whole = extract_rows(job, np.arange(len(job.split)), CPU)
    parts = [extract_rows(job, shard, CPU) for shard in np.array_split(np.arange(len(job.split)), 3)]
    joined = Rows.joined(parts)
    np.testing.assert_array_equal(joined.ids, whole.ids)
    np.testing.assert_allclose(joined.logits, whole.logits, rtol=1e-4, atol=1e-5)


def test_another_width_is_refused_and_damaged_weights_name_a_sample(job: ExtractionJob, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"w.pth has 4 outputs .* tiny for a test needs 5"):
        extract_rows(dataclasses.replace(job, n_outputs=5), np.arange(2), CPU)
    state = {name: value.clone() for name, value in Checkpoint.load(job.checkpoint).model.items()}
    state["logits.weight"][0, 0] = float("nan")
    Checkpoint(epoch=1, model=state).save(tmp_path / "nan.pth")
    with pytest.raises(OscbenchError, match=r"nan.pth gives NaN or infinity for sample 3 \(2 such"):
        extract_rows(dataclasses.replace(job, checkpoint=tmp_path / "nan.pth"), np.arange(3, 5), CPU)
