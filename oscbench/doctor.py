"""What is installed and works on this machine, what is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "missing", "broken", "low"]

GIB = 1024**3


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table; ``remedy`` is empty where nothing is wrong."""

    what: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class _Probe:
    """A few lines run in a process of their own, so that a broken library cannot take the doctor down with it."""

    what: str
    code: str
    remedy: str


_SETUP = "run scripts/setup.sh"
_PROBES = (
    _Probe("torch", "import torch; print(torch.__version__, 'with', torch.get_num_threads(), 'threads')", _SETUP),
    _Probe(
        "CUDA devices",
        "import sys, torch; n = torch.cuda.device_count()\n"
        "print(n, 'x', torch.cuda.get_device_name(0)) if n else sys.exit('none found')",
        "not needed: everything runs on the CPU; for GPUs install a CUDA build of torch and the driver",
    ),
    _Probe(
        "torchvision",
        "from oscbench.torchvision_import import torchvision\n"
        "torchvision.models.resnet18(); print(torchvision.__version__)",
        _SETUP,
    ),
    _Probe(
        "ffcv",
        "import importlib.metadata as m, ffcv; print(m.version('ffcv'))",
        "run scripts/setup.sh (without --no-ffcv); until then images go through the slower PIL loader",
    ),
    _Probe("ray", "import ray, ray.tune, ray.train; print(ray.__version__)", _SETUP),
    _Probe(
        "optuna dashboard",
        "import importlib.metadata as m, optuna_dashboard; print(m.version('optuna-dashboard'))",
        _SETUP,
    ),
    _Probe(
        "WordNet tree",
        "from oscbench.protocols.base import load_protocol\n"
        "print(', '.join(f'protocol {n}: {load_protocol(n).n_known} known' for n in '123'))",
        "the package's own data files are damaged: install it again",
    ),
)
_PROBE_SECONDS = 120


def examine(data: str, runs: Path) -> list[Finding]:
    """All findings, in the order of the table.

    Args:
        data: The image folder to look at, or ``demo``.
        runs: The folder that results would go to; disk space is measured there.
    """
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        libraries = list(pool.map(_run_probe, _PROBES))
    return [_python(), *libraries, _system_wordnet(), _disk(runs), _memory(), _data_folder(data)]


def _run_probe(probe: _Probe) -> Finding:
    try:
        done = subprocess.run(
            [sys.executable, "-c", probe.code], capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding(probe.what, "broken", f"no answer in {_PROBE_SECONDS} s", probe.remedy)
    if done.returncode == 0:
        return Finding(probe.what, "ok", done.stdout.strip().splitlines()[-1])
    reason = (done.stderr.strip().splitlines() or ["ended without a word"])[-1]
    absent = "ModuleNotFoundError" in reason or "none found" in reason
    return Finding(probe.what, "missing" if absent else "broken", reason, probe.remedy)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == (3, 11):
        return Finding("Python", "ok", version)
    return Finding("Python", "broken", version, "use Python 3.11")


def _system_wordnet() -> Finding:
    folder = Path("/usr/share/wordnet")
    if (folder / "data.noun").exists():
        return Finding("WordNet database", "ok", str(folder))
    return Finding(
        "WordNet database",
        "missing",
        f"{folder} not found",
        "only one test needs it: apt-get install wordnet-base wordnet-sense-index",
    )


def _disk(runs: Path) -> Finding:
    existing = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free / GIB
    detail = f"{free:.0f} GiB free for {runs}"
    if not os.access(existing, os.W_OK):
        return Finding("disk", "broken", f"{existing} is not writable", "choose another folder with --runs")
    if free < 5:
        return Finding(
            "disk",
            "low",
            detail,
            "the embedded data needs 1 GiB, ImageNet protocols 30 GiB and more: use --runs",
        )
    return Finding("disk", "ok", detail)


def _memory() -> Finding:
    pages: Callable[[str], int] = os.sysconf
    free = pages("SC_AVPHYS_PAGES") * pages("SC_PAGE_SIZE") / GIB
    total = pages("SC_PHYS_PAGES") * pages("SC_PAGE_SIZE") / GIB
    detail = f"{total:.0f} GiB, {free:.0f} free; {len(os.sched_getaffinity(0))} CPUs"
    return (
        Finding("memory", "ok", detail) if total >= 4 else Finding("memory", "low", detail, "4 GiB are needed at least")
    )


def _data_folder(data: str) -> Finding:
    if data == "demo":
        return Finding("data folder", "ok", "demo: embedded data, drawn when needed")
    root = Path(data)
    absent = [name for name in ("train", "val") if not (root / name).is_dir()]
    if absent:
        return Finding(
            "data folder",
            "missing",
            f"{root} has no {' and no '.join(absent)}",
            "give the ILSVRC-2012 folder that holds train/<wnid> and val/<wnid>",
        )
    counts = {name: sum(1 for entry in (root / name).iterdir() if entry.is_dir()) for name in ("train", "val")}
    return Finding("data folder", "ok", f"{root}: {counts['train']} train and {counts['val']} val classes")
