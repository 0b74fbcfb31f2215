import os
import subprocess
import sys

import pytest


@pytest.fixture
def protocol(tmp_path):
    path = tmp_path / "foxes.yaml"
    path.write_text("protocol: foxes\nknown: [n02119789, n02119022]\nnegative: [n02114367]\nunknown: [n02132136]\n")
    return path


def test_demo_draws_a_tree_that_export_reads(run, tmp_path, protocol):
    out = tmp_path / "demo"
    sizes = ("--per-class", 5, "--test-per-class", 2, "--size", 24, "--seed", 3)
    code, printed, err = run("data", "demo", "--out", out, *sizes, "--protocol", protocol)
    assert (code, printed, err) == (0, f"{out}\n", "")
    assert len(list(out.glob("train/*/*.JPEG"))) == 15
    assert len(list(out.glob("val/*/*.JPEG"))) == 8
    code, printed, _ = run("protocol", "export", "--data", out, "--protocol", protocol, "--out", tmp_path / "tables")
    assert (code, len(printed.splitlines())) == (0, 3)


def test_all_protocols_share_one_tree(run, tmp_path):
    out = tmp_path / "demo"
    code, _, _ = run("data", "demo", "--out", out, "--per-class", 2, "--test-per-class", 1, "--size", 16, "-p", "all")
    assert code == 0
    assert len(list((out / "val").iterdir())) == 572  # distinct classes of the three protocols


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--per-class", 1), 2, "per_class must be at least 2, got 1"),
        (("--size", 0), 2, "size must be at least 16, got 0"),
        (("--protocol", "p9x"), 2, "unknown protocol 'p9x'"),
        (("--out", "/proc/demo"), 1, "cannot write /proc/demo"),
        (("--out", "file"), 1, "cannot write demo data to file: Not a directory"),
    ],
)
def test_refusals_are_one_line(run, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    found, out, err = run("data", "demo", *arguments)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]


def test_help_is_light():
    """Neither verb group pulls in what makes ``--help`` slow."""
    code = (
        "import sys, oscbench.cli.protocol, oscbench.cli.data\n"
        "heavy = {'torch', 'ray', 'numba', 'pandas', 'matplotlib', 'sklearn', 'nltk', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
