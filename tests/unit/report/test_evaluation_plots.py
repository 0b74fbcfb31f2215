"""Files of several runs: none overwrites another, and every curve is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from oscbench.report.evaluation import Options, evaluate_split
from oscbench.report.evaluation_plots import unique_labels, write_plots
from oscbench.runs import Run, load_scores, title_of
from oscbench.scores import ScoreSet


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without the seconds that drawing takes."""
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).write_bytes(b"drawn"))


def demo_run(training: str = "", algorithm: str = "mss") -> Run:
    splits = load_scores("demo")
    title = title_of(splits["val"], "demo")
    origin = dataclasses.replace(title.origin, training=training)
    return Run(title=dataclasses.replace(title, origin=origin, algorithm=algorithm), splits=splits)


def written(runs: list[Run], folder: Path) -> list[str]:
    figures = [[evaluate_split(split, part, Options()) for split, part in run.splits.items()] for run in runs]
    paths = write_plots(runs, figures, folder, 0.1)
    assert sorted(paths) == sorted(folder.iterdir())
    return [path.name for path in paths]


def test_equal_labels_are_numbered_and_no_file_overwrites_another(no_drawing: None, tmp_path: Path) -> None:
    runs = [demo_run(training="eos"), demo_run(training="softmax"), demo_run(training="eos"), demo_run(algorithm="a/b")]
    assert unique_labels(runs) == ["mss, eos", "mss, softmax", "mss, eos (2)", "a/b"]
    names = written(runs, tmp_path)
    assert len(set(names)) == len(names) == 2 * 2 * 2 + 4 * 5
    assert {"scores_mss-eos.png", "confusion_mss-eos-2.csv", "scores_a-b.pdf"} <= set(names)


def test_without_a_threshold_the_histogram_is_still_drawn(
    no_drawing: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scores = ScoreSet.from_scores([[0.5], [0.9]], np.array([0, -2]))
    run = Run(title=title_of(scores, "mine"), splits={"test": scores})
    names = written([run], tmp_path)
    assert "scores.png" in names
    assert "confusion.png" not in names
    assert "no sample has label -1" in caplog.text
