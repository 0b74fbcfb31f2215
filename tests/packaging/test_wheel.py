"""The built wheel carries everything: installed into an empty environment it answers from its own files."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_search_spaces_and_data_files(tmp_path: Path):
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("oscbench-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)

    listed = run(
        python,
        "-c",
        "import importlib.resources as r; root = r.files('oscbench'); print(root);"
        "[print(p.relative_to(root).as_posix()) for p in root.rglob('*') if p.suffix not in ('.py', '.pyc')]",
        cwd=tmp_path,
    ).splitlines()
    assert Path(listed[0]).is_relative_to(tmp_path / "empty")
    shipped = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("search_spaces/*.yaml")}
    assert {"search_spaces/evm.yaml", "search_spaces/openmax.yaml"} <= shipped
    assert shipped | {"py.typed"} <= set(listed)
    data_files = {
        path.relative_to(ROOT / "oscbench").as_posix()
        for path in (*ROOT.glob("oscbench/*/data/*"), *ROOT.glob("oscbench/report/page/*"))
        if path.suffix not in (".py", ".pyc") and path.is_file()
    }
    assert {"report/page/page.html", "report/page/page.css", "report/page/chart.js"} <= data_files
    assert data_files <= set(listed)

    # The other packages come from this environment, oscbench itself from the wheel: no link leads to the checkout.
    packages = sysconfig.get_path("purelib")
    shown = run(tmp_path / "empty" / "bin" / "oscbench", "protocol", "list", cwd=tmp_path, PYTHONPATH=packages)
    assert "116" in shown
