"""Times PROSER's fine-tuning and compares it with the maximum softmax score of the same trainings.

    python benchmarks/proser.py [step] [grid] [seeds] [trunk] [--quick]

runs the named parts (default: all), prints a table and writes benchmarks/proser_<n>cpu_<date>.md and .csv; parts that
are not run keep their rows. ``--quick`` runs less of everything, to see that it works; its figures are not written.

step   one training step beside one of plain cross entropy: same network, same number of images, turn by turn.
grid   the six fine-tunings of embedded protocol 2, loss EOS, through Ray Tune, and what of it is not training.
seeds  PROSER's best of the grid beside the maximum softmax score, embedded protocol 2, EOS and SoftMax, seeds 0 to 2.
trunk  ``--share-trunk`` beside separate fine-tunings of that grid: time, and what the frozen stages change.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from reporting import CPUS, Row, come_to_rest, half_interval, row, run_parts

from oscbench.artifacts import Meta
from oscbench.cli.tune_view import LiveView
from oscbench.data.loading import Batch
from oscbench.distributed.runner import open_ray
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.losses import TrainingClasses
from oscbench.losses.cross_entropy import SoftmaxCriterion
from oscbench.metrics import ccr_fpr_sum, oscr_curve
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.proser import ProserParams
from oscbench.registry import NoParams
from oscbench.scores import ScoreSet
from oscbench.stages.features import FeatureRequest, Features, FeaturesConfig, FeaturesResult, requested_features
from oscbench.stages.runner import Session
from oscbench.stages.scores import scores_of_best
from oscbench.stages.search import Tune
from oscbench.stages.stage import ensure
from oscbench.training.loop import CriterionStep, Place, TrainingStep, train_epoch
from oscbench.training.model import build_network
from oscbench.training.proser import ProserNetwork, ProserStep
from oscbench.training.run import EPOCHS, read_epochs
from oscbench.training.workers import Workers
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import read_trials

# --- one step ------------------------------------------------------------------------------------------------------


def step(quick: bool) -> list[Row]:
    """Seconds of a step of either kind, in turns, on the networks that people use."""
    rows = []
    for name, side, batch in [("tiny", 56, 32), ("resnet18", 64, 32), *([] if quick else [("resnet50", 224, 32)])]:
        turns = 3 if quick or name == "resnet50" else 15
        plain, ours = _steps(name, side, batch, turns)
        ratio = statistics.median(p / q for p, q in zip(ours, plain, strict=True))
        shown = f"{name}, {side} px, batch {batch}"
        rows += [
            row("step", f"{shown}: plain cross entropy", statistics.median(plain), "s"),
            row("step", f"{shown}: PROSER, 5 dummies", statistics.median(ours), "s"),
            row("step", f"{shown}: ratio, median of {turns} turns", ratio, "x", "at most 1.15", ratio <= 1.15),
        ]
    return rows


def _steps(name: str, side: int, size: int, turns: int) -> tuple[list[float], list[float]]:
    """Seconds per update, plain and PROSER, in turns; each turn is one epoch of five updates."""
    n_known, place = 30, Place(torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(n_known, (size,), generator=random)
    batches = [
        Batch(
            torch.rand(size, 3, side, side, generator=random), labels, torch.arange(number * size, (number + 1) * size)
        )
        for number in range(5)
    ]
    criterion = SoftmaxCriterion(TrainingClasses(n_known=n_known, counts=(), n_negative=0), NoParams())
    plain = place.network(build_network(name, n_known))
    proser = place.network(ProserNetwork(build_network(name, n_known), n_known, 5))
    sides: list[tuple[Any, TrainingStep]] = [
        (plain, CriterionStep(criterion)),
        (proser, ProserStep(ProserParams(), seed=0)),
    ]
    optimizers = [torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9) for network, _ in sides]
    seconds: tuple[list[float], list[float]] = [], []
    for turn in range(turns + 1):
        for (network, kind), optimizer, found in zip(sides, optimizers, seconds, strict=True):
            come_to_rest()
            started = time.perf_counter()
            train_epoch(
                network,
                [[batch] for batch in batches],
                kind,
                optimizer,
                place=place,
                workers=Workers(),
                scaler=torch.amp.GradScaler("cpu", enabled=False),
                rate_at_step=lambda _: 1e-4,
                epoch=turn,
            )
            if turn:  # the first one allocates
                found.append((time.perf_counter() - started) / len(batches))
    return seconds


# --- the grid ------------------------------------------------------------------------------------------------------


def features_of(runs: Path, loss: str, seed: int) -> Features:
    """The features of the default training on embedded protocol 2."""
    (found,) = requested_features(FeatureRequest(runs=runs, protocol="2", losses=(loss,), seeds=(seed,)))
    assert isinstance(found, Features)
    return found


def search_on(source: Features, runs: Path, quick: bool, *overrides: str, share_trunk: bool = False) -> Tune:
    """PROSER's published grid."""
    changes = [*(["dummies=1,5", "epochs=2"] if quick else []), *overrides]
    space = load_space("proser", POSTPROCESSORS.info("proser").params, overrides=changes)
    return Tune.of(source, "proser", space, LiveView(runs), share_trunk=share_trunk)


def grid(quick: bool) -> list[Row]:
    """Wall time of the search with Ray's start, and what of it is neither training nor extraction."""
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        source = features_of(runs, "eos", 0)
        with Session(open_ray) as session:
            ensure([source.network], session)
        search = search_on(source, runs, quick)
        started = time.perf_counter()
        with Session(open_ray) as session:
            ensure([search], session)
        seconds = time.perf_counter() - started
        trained = [epoch_seconds(folder) for folder in source.room.root.glob("finetune-*")]
        extracted = [extraction_seconds(folder) for folder in source.room.root.glob("features-*")]
        table = read_trials(search.folder / "trials.csv")
    at_once = min(CPUS, len(table))
    rest = seconds - (sum(trained) + sum(extracted)) / at_once
    whole = f"{len(table)} fine-tunings through Tune, Ray's start included"
    return [
        row("grid", whole, seconds, "s", "below 240", seconds < 240),
        row("grid", f"trials at once on {CPUS} CPUs", at_once, ""),
        row("grid", "epochs of a trial, each as long as the median one, mean", statistics.fmean(trained), "s"),
        row("grid", "extraction of a trial, mean", statistics.fmean(extracted), "s"),
        row("grid", "the rest: start of Ray, Tune and trials, imports, compilation", rest, "s"),
        row("grid", "its share", 100 * rest / seconds, "%", "at most 15", rest / seconds <= 0.15),
        row("grid", "best CCR@FPR sum", table["sum"].max(), ""),
    ]


def epoch_seconds(folder: Path) -> float:
    """What the epochs of a fine-tuning took, without what the first one compiled."""
    seconds = [epoch["seconds"] for epoch in read_epochs(folder / EPOCHS)]
    return len(seconds) * statistics.median(seconds)


def extraction_seconds(folder: Path) -> float:
    """What the features took."""
    return Meta.read(folder, "features", FeaturesConfig, FeaturesResult).seconds


# --- the scores ----------------------------------------------------------------------------------------------------


def sums_of(scores: dict[str, ScoreSet]) -> dict[str, float]:
    """CCR@FPR sum on validation negatives, test negatives and test unknowns."""
    found = {}
    for split, unknown in (("val", NEGATIVE), ("test", NEGATIVE), ("test", UNKNOWN)):
        curve = oscr_curve(scores[split].labels, scores[split].predictions, unknown_label=unknown)
        found[f"{split} {'negatives' if unknown == NEGATIVE else 'unknowns'}"] = ccr_fpr_sum(curve)
    return found


def seeds(quick: bool) -> list[Row]:
    """CCR@FPR sums of both methods over seeds, and the interval of their paired difference."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, Session(open_ray) as session:
        runs = Path(name)
        for loss in ("eos", "softmax"):
            found: dict[str, dict[str, list[float]]] = {"mss": {}, "proser": {}}
            for seed in range(2 if quick else 3):
                source = features_of(runs, loss, seed)
                ensure([source], session)
                if quick:
                    ensure([search_on(source, runs, quick)], session)
                for algorithm, sums in found.items():
                    stage = scores_of_best(source, algorithm, LiveView(runs))
                    ensure([stage], session, yes=True)
                    for where, value in sums_of(stage.load()).items():
                        sums.setdefault(where, []).append(value)
            for where, base in found["mss"].items():
                ours = found["proser"][where]
                differences = [a - b for a, b in zip(ours, base, strict=True)]
                mean = statistics.fmean(differences)
                half = half_interval(differences)
                bar = ("at least -0.02", mean >= -0.02) if (loss, where) == ("eos", "val negatives") else ("", None)
                rows += [
                    row("seeds", f"{loss}, {where}: MSS, mean CCR@FPR sum", statistics.fmean(base), ""),
                    row("seeds", f"{loss}, {where}: PROSER", statistics.fmean(ours), ""),
                    row("seeds", f"{loss}, {where}: PROSER - MSS", mean, "", *bar),
                    row("seeds", f"{loss}, {where}: lower end of its 95 % interval (paired, t)", mean - half, ""),
                    row("seeds", f"{loss}, {where}: upper end", mean + half, ""),
                ]
    return rows


# --- the frozen trunk ----------------------------------------------------------------------------------------------


def trunk(quick: bool) -> list[Row]:
    """The grid with separate fine-tunings and with one pass over a frozen trunk: seconds and CCR@FPR sums."""
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        source = features_of(runs, "eos", 0)
        with Session(open_ray) as session:
            ensure([source.network], session)
        tables, seconds = [], []
        for changes, together in (((), False), (("trunk=frozen",), True)):
            search = search_on(source, runs, quick, *changes, share_trunk=together)
            started = time.perf_counter()
            with Session(open_ray) as session:
                ensure([search], session)
            seconds.append(time.perf_counter() - started)
            tables.append(read_trials(search.folder / "trials.csv").set_index("dummies")["sum"].sort_index())
    separate, shared = tables
    differences = (shared - separate).abs()
    return [
        row("trunk", "separate fine-tunings", seconds[0], "s"),
        row("trunk", "side by side on a frozen trunk", seconds[1], "s"),
        row("trunk", "times faster", seconds[0] / seconds[1], "x"),
        row("trunk", "best CCR@FPR sum, separate", separate.max(), ""),
        row("trunk", "best CCR@FPR sum, frozen trunk", shared.max(), ""),
        row("trunk", "difference of the sum at one B: mean", differences.mean(), ""),
        row("trunk", "difference of the sum at one B: largest", differences.max(), ""),
    ]


# --- the table -----------------------------------------------------------------------------------------------------

PARTS = {"step": step, "grid": grid, "seeds": seeds, "trunk": trunk}

if __name__ == "__main__":
    run_parts("proser", "PROSER", __doc__, PARTS, ("torch", "ray", "ffcv"))
