"""Several algorithms at once: lists and groups in ``tune`` and ``evaluate``, and what is left out of a group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from feature_factory import write_feature_folder

from oscbench.errors import UsageError
from oscbench.postprocessors import POSTPROCESSORS
from oscbench.postprocessors.base import expand_algorithms

Command = Callable[..., tuple[object, str, str]]
FEW = ("evm", "gen", "knn", "mss", "proser")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of a few: of every one there are thirty."""
    entries = {name: POSTPROCESSORS.info(name) for name in FEW}
    monkeypatch.setattr(POSTPROCESSORS, "_entries", entries)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_feature_folder(tmp_path / "own")


@pytest.fixture
def without_logits(tmp_path: Path) -> Path:
    folder = write_feature_folder(tmp_path / "bare")
    for path in folder.glob("*/logits.npy"):
        path.unlink()
    return folder


def test_names_lists_and_groups_mean_each_algorithm_once() -> None:
    every = POSTPROCESSORS.names()
    assert list(expand_algorithms(["all"])) == every
    assert set(every) - set(expand_algorithms(["posthoc"])) == {"proser"}
    assert expand_algorithms(["mss, mls", "mss"]) == {"mss": True, "mls": True}
    mixed = expand_algorithms(["evm", "all"])
    assert list(mixed) == every
    assert [name for name, by_name in mixed.items() if by_name] == ["evm"]
    with pytest.raises(UsageError, match=r"unknown algorithm 'mds\+', did you mean 'mds'"):
        expand_algorithms(["mss,mds+"])
    with pytest.raises(UsageError, match=r"unknown algorithm 'posthok', did you mean 'posthoc'\? .*, all, posthoc\)"):
        expand_algorithms(["posthok"])
    for empty in ("", ",", "mss,"):
        with pytest.raises(UsageError, match="the list of algorithms has an empty name; write it like"):
            expand_algorithms([empty])


def test_a_group_is_tuned_without_what_the_features_lack(
    few: None, without_logits: Path, tmp_path: Path, run: Command
) -> None:
    common = ("tune", "--features", without_logits, "--runs", tmp_path / "runs", "--local")
    code, out, err = run(*common, "--alg", "all", "--memory", "1GiB", "--json")  # which only EVM can bound
    assert code == 0, err
    document = json.loads(out)
    assert [report["algorithm"] for report in document["algorithms"]] == ["evm", "knn"]
    reasons = {entry["algorithm"]: entry["reason"] for entry in document["left_out"]}
    assert set(reasons) == {"gen", "mss", "proser"}
    assert reasons["gen"] == "GEN needs logits, and these features have none; add logits.npy, or use one of evm, knn"
    assert "proser is left out: proser fine-tunes a network" in err
    for algorithm in ("evm", "knn"):  # each its search, and none of them twice
        assert len(list((tmp_path / "runs").glob(f"*/own/softmax/s0/{algorithm}/tune"))) == 1
    code, out, err = run(*common, "--alg", "evm", "--alg", "knn,gen", "--dry-run", "--json")
    assert (code, out) == (2, "")  # GEN is asked for by its name
    code, out, err = run(*common, "--alg", "all", "--dry-run", "--json")
    assert code == 0, err
    assert [step["what"].split()[0] for step in json.loads(out) if step["stage"] == "tune"] == ["evm", "knn"]
    code, out, err = run(*common, "--alg", "posthoc")
    assert code == 0, err
    assert "nothing was run again" not in err  # what is left out is not there
    heading, _, titles, first, second = out.splitlines()
    assert heading.startswith("Data: own-")
    assert titles.split()[:3] == ["algorithm", "training", "seed"]
    sums = {report["algorithm"]: report["searches"][0]["sum"] for report in document["algorithms"]}
    best, other = sorted(sums, key=lambda name: -sums[name])
    assert first.split()[0] == best
    assert second.split()[0] == other
    assert f"{sums[best]:.4f}" in first


def test_what_is_asked_for_by_name_is_not_left_out(
    few: None, without_logits: Path, own: Path, tmp_path: Path, run: Command
) -> None:
    runs = ("--runs", tmp_path / "runs", "--local")
    for features, alg, message in (
        (without_logits, "knn,mss", "MSS needs logits"),
        (without_logits, "posthoc,mss", "MSS needs logits"),
        (own, "all,proser", "proser fine-tunes a network"),
    ):
        code, out, err = run("tune", "--features", features, "--alg", alg, *runs)
        assert (code, out) == (2, "")
        assert err.splitlines()[-1].startswith(f"error: {message}")
        assert not (tmp_path / "runs").exists()


def test_a_group_of_which_nothing_is_left_is_refused(
    few: None, without_logits: Path, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POSTPROCESSORS, "_entries", {name: POSTPROCESSORS.info(name) for name in ("gen", "mss")})
    for verb in (("tune", "--runs", tmp_path / "runs", "--local"), ("evaluate",)):
        code, out, err = run(*verb, "--features", without_logits, "--alg", "posthoc")
        assert (code, out) == (2, "")
        assert "needs logits, and these features have none" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "option", [("--set", "k=3"), ("--space", "a.yaml"), ("--recipe", "authors"), ("--share-trunk",)]
)
def test_options_of_one_algorithm_are_refused_with_several(own: Path, run: Command, option: tuple[str, ...]) -> None:
    code, _, err = run("tune", "--features", own, "--alg", "posthoc", *option)
    assert code == 2
    assert err == f"error: {option[0]} goes with one algorithm, and --alg posthoc means several; leave it out\n"


def test_memory_that_nobody_can_bound_and_seeds_of_nothing_are_refused(few: None, own: Path, run: Command) -> None:
    code, _, err = run("tune", "--features", own, "--alg", "mss,gen", "--memory", "1GiB")
    assert (code, err.count("\n")) == (2, 1)
    assert "--alg mss,gen keeps none; leave it out" in err
    for given in (("--features", own, "--alg", "mss"), ("--scores", "demo")):
        code, _, err = run("evaluate", *given, "--seeds", "0,1")
        assert code == 2
        assert "--seeds names trainings of --protocol" in err


def test_a_member_that_fails_in_any_way_does_not_take_the_others_with_it(
    few: None, own: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(POSTPROCESSORS.get("gen"), "fit", broken)
    code, out, err = run("evaluate", "--features", own, "--alg", "posthoc", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["left_out"] == [{"algorithm": "gen", "reason": "LinAlgError: no convergence"}]
    assert {entry["algorithm"] for entry in document["ranking"]} == {"evm", "knn", "mss"}
    assert run("evaluate", "--features", own, "--alg", "posthoc,gen")[0] == 1


def test_evaluate_ranks_a_group(few: None, own: Path, tmp_path: Path, run: Command) -> None:
    common = ("evaluate", "--features", own, "--alg", "all")
    code, out, err = run(*common, "--json", "--plots", tmp_path / "plots")
    assert code == 0, err
    document = json.loads(out)
    assert [entry["algorithm"] for entry in document["left_out"]] == ["proser"]
    assert {entry["algorithm"] for entry in document["ranking"]} == {"evm", "gen", "knn", "mss"}
    unknown = [entry["unknown"]["value"] for entry in document["ranking"]]
    assert unknown == sorted(unknown, reverse=True)
    assert (tmp_path / "plots" / "ranking.png").exists()
    _, out, _ = run(*common, "--bootstrap", 20)
    assert "95 % intervals of 20 resamples" in out
    rows = [line.split("|") for line in out.splitlines() if line.startswith("| ")][1:]
    assert [row[2].strip() for row in rows] == [entry["algorithm"] for entry in document["ranking"]]
    assert [float(row[3].split()[0]) for row in rows] == pytest.approx(unknown, abs=5e-4)


def test_the_best_settings_of_a_group_are_scored_where_they_were_searched(
    few: None, own: Path, tmp_path: Path, run: Command
) -> None:
    """``--params`` takes one algorithm, so a group goes with ``--protocol``: its plan is enough here."""
    plan = ("--protocol", "2", "--runs", tmp_path / "runs", "--loader", "pil", "--local", "--dry-run", "--json")
    code, out, err = run("evaluate", "--alg", "posthoc", "--loss", "softmax,eos", "--seeds", "0,1", *plan)
    assert code == 0, err
    steps = json.loads(out)
    count = {name: sum(step["stage"] == name for step in steps) for name in ("train", "tune", "scores")}
    assert count == {"train": 4, "tune": 4 * 3, "scores": 4 * 4}  # MSS has nothing to search for
    assert not (tmp_path / "runs").exists()


def test_every_method_goes_from_search_to_threshold_and_export(own: Path, tmp_path: Path, run: Command) -> None:
    searched = ("tune", "--features", own, "--runs", tmp_path / "runs", "--local", "--alg", "posthoc", "--json")
    code, out, err = run(*searched)
    assert code == 0, err
    document = json.loads(out)
    names = set(expand_algorithms(["posthoc"]))
    assert document["left_out"] == []
    assert {report["algorithm"] for report in document["algorithms"]} == names
    for report in document["algorithms"]:
        (found,) = report["searches"]
        assert (found["trials"], found["failed"]) == (found["total"], 0), report["algorithm"]
        assert 0 < found["sum"] <= 4
    code, out, err = run("evaluate", "--features", own, "--alg", "posthoc", "--out", tmp_path / "scores", "--json")
    assert code == 0, err
    assert {entry["algorithm"] for entry in json.loads(out)["ranking"]} == names
    for name in sorted(names):
        scores = tmp_path / "scores" / name
        code, out, err = run("threshold", "--scores", scores, "--fpr", "0.1", "--bootstrap", 5, "--json")
        assert code == 0, err
        threshold = json.loads(out)["threshold"]
        table = tmp_path / f"{name}.csv"
        assert run("export", "--per-sample", "--scores", scores, "--threshold", threshold, "--out", table)[0] == 0
        samples = pd.read_csv(table).query("split == 'val' and label == -1")
        assert len(samples) == 60
        assert (samples["decision"] != "unknown").sum() <= 6  # FPR 0.1 of 60 negatives
