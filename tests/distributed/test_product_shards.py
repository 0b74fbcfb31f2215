"""Products with training rows on sharded actors: KNN, NNGuide and Relation get the same answers for any number."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from posthoc_golden import queries, train

from oscbench.distributed.shards import ShardedSource
from oscbench.numerics.topk import ProductRows
from oscbench.postprocessors import POSTPROCESSORS, knn
from oscbench.tuning.space import load_space

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

RNG = np.random.default_rng(0)
ROWS, ASKED = RNG.normal(size=(9001, 16)).astype(np.float32), RNG.normal(size=(300, 16)).astype(np.float32)
WEIGHTS, OURS = RNG.dirichlet(np.ones(5), 9001), RNG.dirichlet(np.ones(5), 300)


@pytest.mark.parametrize(("n_shards", "device"), [(1, "cpu"), (2, "cpu"), (3, "cpu"), (2, "cpu:0")])
def test_any_number_of_shards_answers_like_this_process(n_shards: int, device: str) -> None:
    """Also by the lines for a GPU, which a device of another name than ``cpu`` runs through."""
    rows = ProductRows(ROWS, WEIGHTS)
    with closing(ShardedSource(rows, n_shards, cpus_per_shard=0.5, device=device)) as source:
        for k, upto in ((1, None), (100, None), (50, 2000), (50, 10)):
            np.testing.assert_array_equal(source.largest(ASKED, k, upto), rows.largest(ASKED, k, upto))
        found, expected = source.related(ASKED, OURS, [1, 4], 0.03), rows.related(ASKED, OURS, [1, 4], 0.03)
        np.testing.assert_allclose(found, expected, rtol=1e-12)  # sums of parts add in another order
        pairs = 3 * len(ROWS) + 2000 + 10  # two questions to all rows, one for sums, two to the first of them
        assert sum(work.scored_pairs for work in source.work()) == pairs * len(ASKED)


def test_a_killed_shard_changes_nothing() -> None:
    rows = ProductRows(ROWS)
    with closing(ShardedSource(rows, 2, cpus_per_shard=0.5)) as source:
        os.kill(source.work()[1].pid, signal.SIGKILL)
        np.testing.assert_array_equal(source.largest(ASKED, 20), rows.largest(ASKED, 20))
        assert source.replaced == [1]


@pytest.mark.parametrize("name", ["knn", "nnguide", "relation"])
def test_a_search_on_shards_finds_what_one_process_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = POSTPROCESSORS.info(name)
    settings: list[Any] = [method.params(**point) for point in load_space(name, method.params).settings()]
    alone = method.grid.best_of_settings(train(), queries(), settings, score_kind="native")
    monkeypatch.setattr(knn, "LARGE_VALUES", 1)  # these few rows count as many, so that they are shared
    opened: list[ShardedSource] = []

    def make_source(rows: ProductRows) -> ShardedSource:
        opened.append(ShardedSource(rows, 2, cpus_per_shard=0.5))
        return opened[-1]

    with closing(method.grid.open_source(train(), settings, make_source)) as source:
        shared = method.grid.best_of_settings(train(), queries(), settings, score_kind="native", source=source)
        assert opened
        assert all(work.scored_pairs > 0 for work in opened[0].work())
    np.testing.assert_array_equal(shared.label, alone.label)
    np.testing.assert_allclose(shared.score, alone.score, rtol=1e-5, atol=1e-5 * np.abs(alone.score).max())
