"""Times the grids of post-hoc methods in one pass beside the plain way, setting by setting.

    python benchmarks/posthoc.py [knn] [rmds] [klm] [gen] [shaping] [vim] [search] [protocol1] [--quick]

Sizes: N 50,000 training rows, P 512 features, K 116 classes, Q 10,000 queries (plain sides that take minutes are timed
on fewer queries, and the time for all is computed from that; the table says so). Medians of five runs, both sides in
turn. The slow sides do what OpenOOD does, step by step, in float32 torch or with faiss (``pip install faiss-cpu``).
``search`` runs all published grids through Ray Tune on the embedded features of protocol 1; ``protocol1`` scores
synthetic features of that protocol's real size, which it writes to disk.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import Row, row, run_parts, timed
from scipy.linalg import pinvh
from scipy.stats import entropy

from oscbench.features import FeatureSet, Head
from oscbench.labels import NEGATIVE
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.base import expand_algorithms
from oscbench.postprocessors.posthoc import Posthoc
from oscbench.tuning.space import load_space

RUNS = 5
K = 116
PUBLISHED_K = (50, 100, 200, 500, 1000)
PERCENTILES = tuple(float(p) for p in range(65, 100, 5))


def make_set(n: int, width: int, *, seed: int, head: Head | None = None) -> FeatureSet:
    """ReLU features around class means, float32, with their logits; every tenth row is a negative."""
    fixed, rng = np.random.default_rng(9), np.random.default_rng(seed)
    means = fixed.normal(size=(K, width)).astype(np.float32)
    weight = (means - means.mean(axis=0)) / np.float32(np.sqrt(width))
    head = head or Head(weight, fixed.normal(size=K).astype(np.float32))
    labels = rng.integers(0, K, n)
    labels[::10] = NEGATIVE
    pooled = np.maximum(means[labels] * (labels >= 0)[:, None] + rng.standard_normal((n, width), np.float32), 0)
    logits = pooled @ head.weight.T + head.bias
    return FeatureSet.from_arrays(
        embedding=logits, labels=labels.astype(np.int64), logits=logits, pooled=pooled, n_known=K, head=head
    )


def sizes(quick: bool) -> tuple[FeatureSet, FeatureSet]:
    """Training rows and queries; after removal of negatives the training rows are about N."""
    n, q = (5_000, 1_000) if quick else (55_556, 10_000)
    return make_set(n, 512, seed=0), make_set(q, 512, seed=1)


def grid_of(name: str, train: FeatureSet, queries: FeatureSet, settings: list[Any], source: Any = None) -> Any:
    """All settings in one pass; a source leaves out the fit."""
    method = POSTPROCESSORS.info(name)
    kind = method.score_kinds[0]
    return method.grid.best_of_settings(train, queries.inputs(), settings, score_kind=kind, source=source)


def medians(quick: bool, **sides: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each side, all of them in turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()  # compiled, and in memory
    for _ in range(1 if quick else RUNS):
        for name, call in sides.items():
            times[name].append(timed(call)[0])
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def known_units(features: FeatureSet) -> np.ndarray[Any, Any]:
    """Known rows with length 1, float32."""
    rows = np.asarray(features.pooled)[features.labels >= 0]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# --- parts -----------------------------------------------------------------------------------------------------------


def knn(quick: bool) -> list[Row]:
    """KNN and NNGuide, five k, beside faiss and OpenOOD's way of calling it."""
    try:
        import faiss
    except ImportError:
        sys.exit("this part compares with faiss: pip install faiss-cpu")
    train, queries = sizes(quick)
    ks = [k for k in PUBLISHED_K if k <= len(train)]
    params, guided = POSTPROCESSORS.info("knn").params, POSTPROCESSORS.info("nnguide").params
    settings, guided_settings = [params(k=k) for k in ks], [guided(k=k) for k in ks]
    opened = POSTPROCESSORS.info("knn").grid.open_source(train, settings)
    opened_guided = POSTPROCESSORS.info("nnguide").grid.open_source(train, guided_settings)
    gallery = known_units(train)
    units = np.asarray(queries.pooled) / np.linalg.norm(np.asarray(queries.pooled), axis=1, keepdims=True)
    index = faiss.IndexFlatL2(gallery.shape[1])
    index.add(gallery)
    part = 400 if not quick else 200

    def openood() -> None:
        for k in ks:
            for first in range(0, part, 200):
                index.search(units[first : first + 200], k)

    right = torch.from_numpy(gallery)

    def product() -> None:
        for first in range(0, len(units), 256):
            torch.from_numpy(units[first : first + 256]) @ right.T

    found = medians(
        quick,
        ours=lambda: grid_of("knn", train, queries, settings, opened),
        guided=lambda: grid_of("nnguide", train, queries, guided_settings, opened_guided),
        faiss=lambda: index.search(units, ks[-1]),
        openood=openood,
        product=product,
    )
    theirs, plain = index.search(units, ks[-1])[0], found["openood"] * len(units) / part
    ours = grid_of("knn", train, queries, settings, opened).score
    error = float(np.abs(ours + theirs[:, np.array(ks) - 1]).max())
    return [
        row("knn", f"KNN, k {ks}, one pass", found["ours"], "s"),
        row("knn", "matrix product alone", found["product"], "s"),
        row("knn", f"faiss, one call, k {ks[-1]}", found["faiss"], "s"),
        row("knn", f"OpenOOD's way: batches of 200, each k anew ({part} queries timed)", plain, "s"),
        row("knn", "one pass / faiss", found["ours"] / found["faiss"], "", "<= 1.0", found["ours"] <= found["faiss"]),
        row("knn", "OpenOOD's way / one pass", plain / found["ours"], "x", ">= 15", plain >= 15 * found["ours"]),
        row("knn", f"NNGuide, k {ks}, one pass", found["guided"], "s"),
        row(
            "knn",
            "NNGuide / KNN",
            found["guided"] / found["ours"],
            "",
            "<= 1.3",
            found["guided"] <= 1.3 * found["ours"],
        ),
        row("knn", "largest difference to faiss in squared distance", error, ""),
    ]


def rmds(quick: bool) -> list[Row]:
    """RMDS, one setting, scoring alone: all classes by one product beside a product per class and batch."""
    train, queries = sizes(quick)
    params = POSTPROCESSORS.info("rmds").params(normalize=False)
    opened = POSTPROCESSORS.info("rmds").grid.open_source(train, [params])
    known = train.labels >= 0
    pooled, labels = np.asarray(train.pooled, np.float64)[known], train.labels[known]
    class_means = np.stack([pooled[labels == k].mean(axis=0) for k in range(K)])
    apart = pooled - class_means[labels]
    inverse, overall, means, mean = (
        torch.from_numpy(array.astype(np.float32))
        for array in (
            pinvh(apart.T @ apart / len(apart)),
            pinvh(np.cov(pooled.T, bias=True)),
            class_means,
            pooled.mean(axis=0),
        )
    )
    rows, part = torch.from_numpy(np.asarray(queries.pooled)), 400

    def openood() -> torch.Tensor:
        found = []
        for first in range(0, part, 200):
            block = rows[first : first + 200]
            scores = torch.empty(len(block), K)
            background = -torch.diag((block - mean) @ overall @ (block - mean).T)
            for k in range(K):
                apart = block - means[k]
                scores[:, k] = -torch.diag(apart @ inverse @ apart.T) - background
            found.append(scores.max(dim=1).values)
        return torch.cat(found)

    found = medians(quick, ours=lambda: grid_of("rmds", train, queries, [params], opened), openood=openood)
    plain = found["openood"] * len(rows) / part
    ours = grid_of("rmds", train, queries, [params], opened).score[:part, 0]
    error = float(np.abs(ours - openood().numpy()).max() / ours.std())
    return [
        row("rmds", "RMDS scoring, one product for all classes", found["ours"], "s"),
        row("rmds", f"OpenOOD's way: batches of 200, class by class ({part} queries timed)", plain, "s"),
        row("rmds", "OpenOOD's way / ours", plain / found["ours"], "x", ">= 30", plain >= 30 * found["ours"]),
        row("rmds", "largest difference in standard deviations", error, ""),
    ]


def klm(quick: bool) -> list[Row]:
    """KLM: one product beside a call of scipy for every pair."""
    train, queries = sizes(quick)
    params = POSTPROCESSORS.info("klm").params()
    opened = POSTPROCESSORS.info("klm").grid.open_source(train, [params])
    typical = np.exp(opened._log_typical)
    probabilities = torch.softmax(torch.from_numpy(np.asarray(queries.logits)), dim=1).double().numpy()
    part = 50

    def openood() -> np.ndarray[Any, Any]:
        return np.array([-min(entropy(p, typical[k]) for k in range(K)) for p in probabilities[:part]])

    found = medians(quick, ours=lambda: grid_of("klm", train, queries, [params], opened), openood=openood)
    plain = found["openood"] * len(queries) / part
    ours = grid_of("klm", train, queries, [params], opened).score[:part, 0]
    return [
        row("klm", "KLM scoring, one product", found["ours"], "s"),
        row("klm", f"OpenOOD's way: scipy for every pair ({part} queries timed)", plain, "s"),
        row("klm", "OpenOOD's way / ours", plain / found["ours"], "x", ">= 1000", plain >= 1000 * found["ours"]),
        row("klm", "largest difference", float(np.abs(ours - openood()).max()), ""),
    ]


def gen(quick: bool) -> list[Row]:
    """GEN, 42 settings: one sort and running sums beside a sort for each."""
    train, queries = sizes(quick)
    method = POSTPROCESSORS.info("gen")
    settings = [method.params(**point) for point in load_space("gen", method.params).settings()]
    logits = torch.from_numpy(np.asarray(queries.logits))

    def openood() -> torch.Tensor:
        found = []
        for setting in settings:
            probabilities = torch.softmax(logits, dim=1)
            largest = torch.sort(probabilities, dim=1).values[:, -min(K, setting.top) :]
            found.append(-torch.sum(largest**setting.gamma * (1 - largest) ** setting.gamma, dim=1))
        return torch.stack(found, dim=1)

    found = medians(quick, ours=lambda: grid_of("gen", train, queries, settings), openood=openood)
    ratio = found["openood"] / found["ours"]
    return [
        row("gen", f"GEN, {len(settings)} settings, one pass", found["ours"], "s"),
        row("gen", "OpenOOD's way: each setting anew", found["openood"], "s"),
        row("gen", "OpenOOD's way / one pass", ratio, "x", ">= 25", ratio >= 25),
    ]


def shaping(quick: bool) -> list[Row]:
    """SCALE and ASH-B, seven percentiles: one sort beside each anew."""
    train, queries = sizes(quick)
    pooled = torch.from_numpy(np.asarray(queries.pooled))
    assert train.head is not None
    weight, bias = torch.from_numpy(train.head.weight), torch.from_numpy(train.head.bias)

    def plain(variant: str) -> torch.Tensor:
        found = []
        for percentile in PERCENTILES:
            features = pooled.clone()
            before = features.sum(dim=1)
            k = features.shape[1] - round(features.shape[1] * percentile / 100)
            value, at = torch.topk(features, k, dim=1)
            if variant == "scale":
                features = features * torch.exp(before / value.sum(dim=1))[:, None]
            else:
                features = torch.zeros_like(features).scatter_(1, at, (before / k)[:, None].expand(value.shape))
            found.append(torch.logsumexp(features @ weight.T + bias, dim=1))
        return torch.stack(found, dim=1)

    rows = []
    for name, extra in (("scale", {}), ("ash", {"variant": "b"})):
        method = POSTPROCESSORS.info(name)
        settings = [method.params(percentile=p, **extra) for p in PERCENTILES]
        opened = method.grid.open_source(train, settings) or None
        variant = name

        def ours(name: str = name, settings: list[Any] = settings, opened: Any = opened) -> Any:
            return grid_of(name, train, queries, settings, opened)

        found = medians(quick, ours=ours, plain=lambda variant=variant: plain(variant))
        ratio = found["plain"] / found["ours"]
        error = float(np.abs(ours().score - plain(variant).numpy()).max() / ours().score.std())
        rows += [
            row("shaping", f"{method.label}, 7 percentiles, one pass", found["ours"], "s"),
            row("shaping", f"{method.label}, each percentile anew", found["plain"], "s"),
            row("shaping", f"{method.label}, each anew / one pass", ratio, "x", ">= 4", ratio >= 4),
            row("shaping", f"{method.label}, largest difference in standard deviations", error, ""),
        ]
    return rows


def vim(quick: bool) -> list[Row]:
    """ViM, fit and score: four dimensions beside one."""
    train, queries = sizes(quick)
    params = POSTPROCESSORS.info("vim").params
    four = [params(dim=d) for d in (32, 64, 128, 256)]
    found = medians(
        quick, four=lambda: grid_of("vim", train, queries, four), one=lambda: grid_of("vim", train, queries, four[:1])
    )
    ratio = found["four"] / found["one"]
    return [
        row("vim", "ViM, fit and score, 4 dimensions", found["four"], "s"),
        row("vim", "ViM, fit and score, 1 dimension", found["one"], "s"),
        row("vim", "4 dimensions / 1", ratio, "", "<= 1.3", ratio <= 1.3),
    ]


def search(quick: bool) -> list[Row]:
    """All methods with their published grids on the embedded features, through Ray Tune to the table."""
    with tempfile.TemporaryDirectory() as folder:
        common = ["--protocol", "2" if quick else "1", "--runs", folder, "--yes"]
        subprocess.run(["oscbench", "extract", "--loss", "softmax", *common[:-1]], check=True)
        started = time.perf_counter()
        subprocess.run(["oscbench", "tune", "--alg", "posthoc", *common], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
    count = len(expand_algorithms(["posthoc"]))
    return [row("search", f"{count} methods with their grids through Ray Tune", seconds, "s", "< 240", seconds < 240)]


def protocol1(quick: bool) -> list[Row]:
    """Synthetic features of protocol 1's real size on disk: logit and head methods, then KNN beside its product."""
    n, q, width = (6_000, 2_000, 256) if quick else (116_218, 46_475, 2048)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for split, count in (("train", n), ("val", q)):
            # in a process of its own, whose memory is not that of the methods
            write = get_context("spawn").Process(target=_write, args=(Path(folder) / split, count, width, len(split)))
            write.start()
            write.join()
        train, queries = (FeatureSet.load(Path(folder) / split, n_known=K) for split in ("train", "val"))
        total = 0.0
        for name in POSTPROCESSORS.names():
            method = POSTPROCESSORS.info(name)
            if isinstance(method.value, type) and issubclass(method.value, Posthoc) and method.cost != "pairs":
                settings = [method.params(**point) for point in load_space(name, method.params).settings()]
                seconds, _ = timed(lambda name=name, settings=settings: grid_of(name, train, queries, settings))
                total += seconds
                rows.append(row("protocol1", f"{name}, {len(settings)} settings", seconds, "s"))
        gibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        rows.append(row("protocol1", "all logit and head methods", total, "s", "< 300", total < 300))
        rows.append(row("protocol1", "peak memory", gibibytes, "GiB", "< 6", gibibytes < 6))
        params = POSTPROCESSORS.info("knn").params
        settings = [params(k=k) for k in PUBLISHED_K]
        opened = POSTPROCESSORS.info("knn").grid.open_source(train, settings)
        seconds, _ = timed(lambda: grid_of("knn", train, queries, settings, opened))
        right, left = torch.from_numpy(known_units(train)), torch.from_numpy(np.asarray(queries.pooled))

        def product() -> None:
            for first in range(0, len(left), 512):
                left[first : first + 512] @ right.T

        alone, _ = timed(product)
        rows += [
            row("protocol1", "KNN on pooled, five k", seconds, "s"),
            row("protocol1", "its matrix product alone", alone, "s"),
            row("protocol1", "KNN / product", seconds / alone, "", "<= 1.5", seconds <= 1.5 * alone),
        ]
    return rows


def _write(folder: Path, n: int, width: int, seed: int) -> None:
    folder.mkdir()
    features = make_set(n, width, seed=seed)
    arrays = {"embedding": features.embedding, "labels": features.labels, "logits": features.logits}
    assert features.head is not None
    arrays |= {"pooled": features.pooled, "head_weight": features.head.weight, "head_bias": features.head.bias}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


PARTS = {
    "knn": knn,
    "rmds": rmds,
    "klm": klm,
    "gen": gen,
    "shaping": shaping,
    "vim": vim,
    "search": search,
    "protocol1": protocol1,
}

if __name__ == "__main__":
    run_parts("posthoc", "Post-hoc methods: grids in one pass", str(__doc__), PARTS, ["torch", "numpy", "numba"])
