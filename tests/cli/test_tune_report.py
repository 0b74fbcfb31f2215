"""What ``oscbench tune`` says in the end: best setting, published optimum, edges, mean and deviation over seeds."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from feature_factory import make_features
from rich.console import Console
from search_factory import FeatureSearch, is_finished, make_search, shared

from oscbench.cli.tune_view import LiveView, print_report, print_reports, print_warnings
from oscbench.labels import NEGATIVE
from oscbench.metrics import ccr_fpr_sum, oscr_curve
from oscbench.notes import Note
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.progress import PassProgress
from oscbench.report.search import report_of
from oscbench.tuning.evaluator import SharedFeatures
from oscbench.tuning.published import FILE, compare_with_published
from oscbench.tuning.search import SearchRun
from oscbench.tuning.space import load_space
from oscbench.tuning.trials import RATES, read_trials


def finished(
    runs: Path, seed: int, overrides: tuple[str, ...], data: str = "demo-1234", **changes: Any
) -> FeatureSearch:
    params = POSTPROCESSORS.info("openmax").params
    search = make_search(
        runs,
        **{
            "data": data,
            "protocol": "p1",
            "seed": seed,
            "algorithm": "openmax",
            "train": make_features(30, negatives=20, seed=10 * seed),
            "validation": make_features(15, negatives=50, seed=10 * seed + 1),
            "space": load_space("openmax", params, overrides=overrides),
            **changes,
        },
    )
    with SearchRun(search) as run:
        settings = run.remaining()
        evaluator = shared(search)
        for setting, outcome in zip(settings, evaluator(settings), strict=True):
            run.record(setting, outcome)
        best = run.finish()
    compare_with_published(search, best.params, search.train, search.validation)  # as the stage does
    return search


def published_sum(search: FeatureSearch, setting: dict[str, Any]) -> float:
    """The setting fitted and read by itself, as the evaluation paper's code does."""
    entry = POSTPROCESSORS.info("openmax")
    fitted = entry.value(entry.params(**setting), score_kind="published").fit(search.train)
    found = fitted.predict(search.validation.inputs())
    curve = oscr_curve(search.validation.labels, found, unknown_label=NEGATIVE)
    return ccr_fpr_sum(curve, rule="published")


GRID = ("tail_size=5,1000", "distance_multiplier=1.5,2.0", "alpha=3,10")


def test_report_of_one_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = finished(tmp_path, 0, GRID, demo=True)
    table = read_trials(search.folder / "trials.csv")
    report = report_of([search])
    json.dumps(report, allow_nan=False)
    (found,) = report["searches"]
    assert found["sum"] == table["sum"].max()
    assert found["trials"] == found["total"] == 8
    published = found["published"]
    assert (published["sum"], published["rule"], published["score_kind"]) == (1.5823, "published", "published")
    here = published_sum(search, {"tail_size": 1000, "distance_multiplier": 2.0, "alpha": 10})
    assert published["sum_here"] == pytest.approx(here)
    assert published["best_here"] == pytest.approx(published_sum(search, found["params"]))
    own_rule = table.query("tail_size == 1000 and distance_multiplier == 2.0 and alpha == 10")["sum"].item()
    assert published["sum_here"] != own_rule  # another rule, another score
    assert "over_seeds" not in report
    print_report(report)
    print_warnings(report, several=False)
    out, err = capsys.readouterr()
    assert out.startswith("Data: demo-1234 (embedded demonstration images, not ImageNet), protocol p1")
    assert "published  tail_size 1000, distance_multiplier 2, alpha 10: sum 1.5823 on ImageNet; by the same rule" in out
    assert f"it reaches {here:.4f} here, the setting above {published['best_here']:.4f}" in out
    assert f"sum {found['sum']:.4f}" in out
    assert str(search.folder) in out
    edges = [name for name in ("tail_size", "distance_multiplier", "alpha") if f"the best {name} " in err]
    assert edges == ["tail_size", "distance_multiplier", "alpha"]  # of two values each is an edge
    assert "warning" not in out


def test_sums_by_other_rules_are_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = finished(tmp_path, 0, GRID)
    (search.folder / FILE).unlink()  # as where each setting is a network, and none has the published dummies
    report = report_of([search])
    published = report["searches"][0]["published"]
    assert [published[name] for name in ("sum_here", "best_here", "score_kind")] == [None] * 3
    print_report(report)
    assert "sum 1.5823 on ImageNet, by another rule or score than the sum above\n" in capsys.readouterr().out


def test_a_search_by_the_published_rule_has_the_comparison_in_its_table(tmp_path: Path) -> None:
    search = finished(tmp_path, 0, GRID, rule="published", score_kind="published")
    assert not (search.folder / FILE).exists()
    published = report_of([search])["searches"][0]["published"]
    setting = {"tail_size": 1000, "distance_multiplier": 2.0, "alpha": 10}
    assert published["sum_here"] == pytest.approx(published_sum(search, setting))


def test_a_published_setting_that_fails_here_leaves_no_comparison(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = finished(tmp_path, 0, GRID)
    (search.folder / FILE).unlink()
    without = dataclasses.replace(search.train, logits=None)
    compare_with_published(search, {"tail_size": 5}, without, search.validation)
    assert not (search.folder / FILE).exists()
    assert "no comparison with the published setting: " in caplog.text


def test_mean_and_deviation_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches = [finished(tmp_path, seed, GRID) for seed in (0, 1, 2)]
    report = report_of(searches)
    json.dumps(report, allow_nan=False)
    (spread,) = report["over_seeds"]
    assert spread["seeds"] == [0, 1, 2]
    tables = [read_trials(search.folder / "trials.csv") for search in searches]
    means: dict[tuple[Any, ...], float] = {}
    for setting in searches[0].grid_settings():
        key = (setting["tail_size"], setting["distance_multiplier"], setting["alpha"])
        means[key] = statistics.fmean(values_of(tables, key, "sum"))
    best = max(means, key=lambda key: means[key])
    assert tuple(spread["params"][name] for name in ("tail_size", "distance_multiplier", "alpha")) == best
    for name in RATES:
        values = values_of(tables, best, name)
        assert spread[name]["mean"] == pytest.approx(statistics.fmean(values), abs=1e-12)
        assert spread[name]["std"] == pytest.approx(statistics.stdev(values), abs=1e-12)
    print_report(report)
    out = capsys.readouterr().out
    assert "openmax, softmax: mean ± std over seeds 0, 1, 2" in out
    assert f"sum {spread['sum']['mean']:.4f} ± {spread['sum']['std']:.4f}" in out


def test_several_algorithms_are_a_line_for_each_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = report_of([finished(tmp_path / "a", seed, GRID) for seed in (0, 1)])
    second = report_of([finished(tmp_path / "b", 2, GRID, kind="random")]) | {"algorithm": "other"}
    print_reports([first, second])
    out = capsys.readouterr().out
    assert out.count("Data: ") == 1
    lines = [line.split() for line in out.splitlines() if re.match("openmax |other ", line)]
    found = {(line[0], int(line[2])): float(line[7]) for line in lines}
    expected = {("openmax", found["seed"]): found["sum"] for found in first["searches"]}
    expected[("other", 2)] = second["searches"][0]["sum"]
    assert found == pytest.approx(expected, abs=5e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert "openmax, softmax: mean ± std over seeds 0, 1" in out
    assert "other, softmax" not in out
    print_warnings(first, several=True)
    assert "warning: openmax, softmax, seed 0: the best tail_size" in capsys.readouterr().err


def test_no_mean_over_seeds_without_a_common_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches = [finished(tmp_path, seed, GRID) for seed in (0, 1)]
    for search, kept in zip(searches, (slice(1, 5), slice(5, None)), strict=True):  # as time budgets may leave them
        header, *lines = (search.folder / "trials.csv").read_text().splitlines(keepends=True)
        (search.folder / "trials.csv").write_text("".join([header, *lines[kept]]))
    report = report_of(searches)
    assert report["over_seeds"] == []
    print_report(report)
    assert "mean ±" not in capsys.readouterr().out


def test_a_rate_that_one_seed_does_not_reach_has_no_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("tail_size=5", "distance_multiplier=2.0", "alpha=3")
    searches = [finished(tmp_path, seed, overrides) for seed in (0, 1)]
    path = searches[1].folder / "trials.csv"
    table = read_trials(path)
    assert table["ccr_1e-2"].notna().all()
    table["ccr_1e-3"] = float("nan")
    table.to_csv(path, index=False)
    report = report_of(searches)
    assert report["over_seeds"][0]["ccr_1e-3"] == {"mean": None, "std": None}
    print_report(report)
    assert "1e-3: — ± —  1e-2: 0." in capsys.readouterr().out


def test_the_best_of_each_seed_where_settings_were_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches = [finished(tmp_path, seed, GRID, kind="random") for seed in (0, 1)]
    (spread,) = report_of(searches)["over_seeds"]
    best = [read_trials(search.folder / "trials.csv")["sum"].max() for search in searches]
    assert spread["params"] is None
    assert spread["sum"]["mean"] == pytest.approx(statistics.fmean(best), abs=1e-12)
    print_report(report_of(searches))
    assert "setting    the best of each seed" in capsys.readouterr().out


def values_of(tables: list[Any], key: tuple[Any, ...], column: str) -> list[float]:
    values = []
    for table in tables:
        same = [
            table[name] == value for name, value in zip(("tail_size", "distance_multiplier", "alpha"), key, strict=True)
        ]
        values.append(float(table[same[0] & same[1] & same[2]][column].item()))
    return values


def test_failed_trials_are_told_and_leave_the_search_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = finished(tmp_path, 0, GRID)
    lines = (search.folder / "trials.csv").read_text().splitlines(keepends=True)
    (search.folder / "trials.csv").write_text("".join(lines[:-2]))
    with SearchRun(search) as run:
        first, second = run.remaining()
        run.record(first, {"error": "out of luck"})
        run.record(second, SharedFeatures("openmax", search.train, search.validation)([second])[0])
        run.finish()
    assert not is_finished(search)
    table = read_trials(search.folder / "trials.parquet")
    assert table["error"].tolist() == [""] * 6 + ["out of luck", ""]
    report = report_of([search])
    assert (report["searches"][0]["trials"], report["searches"][0]["failed"]) == (7, 1)
    print_warnings(report, several=False)
    assert (
        "1 of 8 trials are missing (1 failed: out of luck); run the same command with --resume"
        in capsys.readouterr().err
    )


def test_notes_are_told_once_and_of_whom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches = [finished(tmp_path, seed, GRID) for seed in (0, 1)]
    with SearchRun(searches[1]) as run:
        for count in (7, 12, 9):  # as passes over different settings say it
            notes = (Note("OpenMax: {} of 40 tails became a step", (count,)), Note("OpenMax: bent"))
            run.record({"tail_size": count, "distance_multiplier": 1.5, "alpha": 3}, {"error": "none", "notes": notes})
    report = report_of(searches)
    clipped, alpha = report["searches"][0]["notes"]
    assert clipped.startswith("OpenMax: tail size 1000 clipped for 6 of 6 classes")
    assert alpha == "OpenMax: alpha up to 10 clipped to 6 classes in 4 settings"
    assert report["searches"][1]["notes"][2:] == ["OpenMax: 12 of 40 tails became a step", "OpenMax: bent"]
    print_warnings(report, several=False)
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("note")]
    assert told[:2] == [f"note: softmax, seed 0: {clipped}", f"note: softmax, seed 0: {alpha}"]
    assert told[4:] == [
        "note: softmax, seed 1: OpenMax: 12 of 40 tails became a step",
        "note: softmax, seed 1: OpenMax: bent",
    ]
    assert "warning: softmax, seed 0: the best tail_size" in "\n".join(lines)


def test_own_data_are_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("own-12345678", "demographics"):
        print_report(report_of([finished(tmp_path, 0, GRID, data=name)]))
        assert capsys.readouterr().out.startswith(f"Data: {name}, protocol p1")


def test_what_is_being_done_is_shown_in_the_table_and_now_and_then_in_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = finished(tmp_path, 0, GRID)
    current = PassProgress(number=1, settings=80, done=430, total=1000, seconds=19.0)
    with SearchRun(search) as run:
        view = LiveView(tmp_path)
        view.progress(run, current)
        view.progress(run, dataclasses.replace(current, done=440))  # within the same ten seconds
        assert capsys.readouterr().err.splitlines() == ["pass over 80 settings: 43 %, about 0:25 left"]
        monkeypatch.setattr("oscbench.cli.tune_view.LOG_EVERY_SECONDS", 0.0)
        view.step(run, {"tail_size": 5, "alpha": 2}, 3, {"loss": 0.123456, "accuracy": 0.5})
        assert capsys.readouterr().err.splitlines() == ["tail_size 5, alpha 2: epoch 3, loss 0.1235, accuracy 0.5"]
        view.update(run)
        assert "alpha 2: epoch 3, loss" in capsys.readouterr().err  # it has not finished

        live = LiveView(tmp_path)
        live._console = Console(file=io.StringIO(), force_terminal=True, width=120)
        live.begin(run)
        live.progress(run, current)
        live._live.refresh()
        live.end(run)
        assert "8/8 trials; pass over 80 settings: 43 %, about 0:25 left" in live._console.file.getvalue()
    assert str(PassProgress(1, 1, 0, 1, 0.0)) == "pass over 1 setting: 0 %"


def test_the_log_shows_the_best_five_and_the_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = finished(tmp_path, 0, GRID)
    with SearchRun(search) as run:
        view = LiveView(tmp_path)
        view.begin(run)
        view.update(run)
        view.end(run)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert "8 trials by grid, 8 finished before" in lines[0]
    assert "oscbench watch --runs" in lines[1]
    assert lines[2].startswith("8/8 trials")
    assert len(lines) == 4 + 5
    best = read_trials(search.folder / "trials.csv")["sum"].max()
    assert lines[4].endswith(f"{best:.4f}")
