"""Plots show the curve they were given, keep fifteen curves apart, and are written whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import OscrCurve, ccr_at_fpr, open_set_confusion, oscr_curve
from oscbench.metrics.oscr import step_points
from oscbench.report.plots.confusion import confusion_figure
from oscbench.report.plots.oscr import oscr_figure
from oscbench.report.plots.scores import histogram_figure
from oscbench.report.plots.style import curve_styles, save_figure
from oscbench.runs import load_scores

DEMO = load_scores("demo")
ALGORITHMS, TRAININGS = ("mss", "mls", "openmax", "evm", "proser"), ("softmax", "garbage", "eos")


def demo_curve(label: int) -> OscrCurve:
    return oscr_curve(DEMO["test"].labels, DEMO["test"].scores, unknown_label=label)


def test_steps_give_the_inclusive_ccr_at_every_rate() -> None:
    curve = demo_curve(UNKNOWN)
    fpr, ccr = step_points(curve)
    assert np.all(np.diff(fpr) > 0)
    for wanted in (0.0, 1e-3, 0.01, 0.033, 0.5, 1.0):
        assert ccr[np.searchsorted(fpr, wanted, side="right") - 1] == ccr_at_fpr(curve, wanted)


def test_styles_stay_apart() -> None:
    paper = [f"{a}, {t}" for a in ALGORITHMS for t in TRAININGS]
    styles = curve_styles(paper)
    assert len(set(styles.values())) == 15
    assert styles["evm, softmax"].color == styles["evm, eos"].color
    assert styles["evm, eos"].line == styles["mss, eos"].line
    for labels in ([f"run {i}" for i in range(32)], [f"{i}, x" for i in range(20)]):
        assert len(set(curve_styles(labels).values())) == len(labels)


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_fifteen_curves_have_one_legend_outside_the_axes(scale: str) -> None:
    labels = [f"{a}, {t}" for a in ALGORITHMS for t in TRAININGS]
    panels = {"negatives": dict.fromkeys(labels, demo_curve(NEGATIVE)), "unknowns": {labels[0]: demo_curve(UNKNOWN)}}
    figure = oscr_figure(panels, scale=scale, title="data")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == labels
    below = legend.get_window_extent()
    assert all(below.y1 <= axis.get_tightbbox().y0 + 1 for axis in figure.axes)
    assert below.x0 >= 0
    assert below.x1 <= figure.bbox.x1
    assert all(axis.get_xscale() == scale for axis in figure.axes)
    assert figure.axes[0].get_xlim() == (1e-3 if scale == "log" else 0.0, 1.0)


def test_long_titles_stay_inside() -> None:
    figure = oscr_figure({"one": {"mss": demo_curve(UNKNOWN)}}, scale="log", title="own scores in " + "/long" * 40)
    figure.draw_without_rendering()
    title = figure._suptitle.get_window_extent()
    assert title.x0 >= 0
    assert title.x1 <= figure.bbox.x1
    assert title.y1 <= figure.bbox.y1


def test_histograms_add_up_and_show_the_threshold() -> None:
    figure = histogram_figure(DEMO, title="data", score_kind="log", threshold=-0.01)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["known", "negative", "unknown", "threshold -0.01"]
    for axis in figure.axes:
        outlines = [patch for patch in axis.patches if not patch.get_fill()]
        assert outlines
        assert all(np.sum(patch.get_data().values) == pytest.approx(1.0) for patch in outlines)
        assert axis.lines[0].get_xdata()[0] == pytest.approx(2.0)  # -log10(0.01)
    probabilities = {"test": DEMO["test"]}
    plain = histogram_figure(probabilities, title="data", score_kind="logit", threshold=None)
    assert "logit" in plain.axes[0].get_xlabel()


@pytest.mark.parametrize("keep", ["all", "known"])
def test_confusion_shows_shares_of_each_kind(keep: str) -> None:
    test = DEMO["test"]
    rows = test.labels >= (UNKNOWN if keep == "all" else 0)
    confusion = open_set_confusion(test.labels[rows], test.class_index[rows], test.scores[rows], -0.01)
    figure = confusion_figure(confusion, test.classes, title="data")
    images = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert len(images) == (3 if keep == "all" else 1)
    assert all(np.allclose(image.sum(axis=1), 1.0) for image in images)
    np.testing.assert_array_equal(
        images[0][:, :-1], confusion.known[:, :-1] / confusion.known.sum(axis=1, keepdims=True)
    )


def test_files_are_written_whole_and_repeat(tmp_path: Path) -> None:
    panels = {"unknowns": {"mss": demo_curve(UNKNOWN)}}
    for folder in ("a", "b"):
        paths = save_figure(oscr_figure(panels, scale="log", title="data"), tmp_path / folder, "oscr")
        assert [path.name for path in paths] == ["oscr.png", "oscr.pdf"]
    assert (tmp_path / "a/oscr.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a/oscr.pdf").read_bytes().startswith(b"%PDF")
    for name in ("oscr.png", "oscr.pdf"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_failed_plot_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("killed")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(RuntimeError, match="killed"):
        save_figure(Figure(), tmp_path, "oscr")
    assert list(tmp_path.iterdir()) == []
