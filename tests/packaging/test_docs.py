"""The documentation builds without a warning, loads nothing from elsewhere, and a broken link does not get past."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LOADING = ("src", "srcset", "poster", "data", "background", "action")
"""Attributes that make a browser fetch something; ``href`` does so in ``link`` alone."""
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
CSS_ELSEWHERE = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:[a-z]+:)?//[^\"')\s]+)", re.IGNORECASE)
JS_ELSEWHERE = re.compile(
    r"(?:\bfetch|\bimport|importScripts|\bopen|\.src\s*=|\.href\s*=)\s*\(?\s*[\"'`]((?:https?:)?//[^\"'`]+)"
)


class Checkout:
    """A copy of what the site is made from, and the site."""

    def __init__(self, folder: Path) -> None:
        self.root, self._work = folder / "repository", folder
        for name in ("docs", "benchmarks"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for page in ROOT.glob("*.md"):
            shutil.copy(page, self.root)

    def build(self, site: str) -> subprocess.CompletedProcess[str]:
        """As ``docs/conf.py`` says it is done; pages that were read before are not read again."""
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-d", self._work / "read"]
        return subprocess.run(
            [*command, ".", self._work / site],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )

    def site(self, name: str) -> Path:
        return self._work / name


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def site(checkout: Checkout) -> Path:
    """The built site; fails where the build has anything to warn of."""
    done = checkout.build("site")
    assert done.returncode == 0, done.stderr
    return checkout.site("site")


class Loads(HTMLParser):
    """Collects what a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADING or (tag, name) == ("link", "href"):
                self.found.append(value or "")
            elif name == "style":
                self.found += CSS_ELSEWHERE.findall(value or "")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found += CSS_ELSEWHERE.findall(data)
        elif self.cdata_elem == "script":
            self.found += JS_ELSEWHERE.findall(data)


def loads_of(file: Path) -> Iterator[str]:
    """Addresses on other hosts that a file of the site makes a browser load."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".html":
        page = Loads()
        page.feed(text)
        yield from filter(ELSEWHERE.match, page.found)
    else:
        yield from (CSS_ELSEWHERE if file.suffix == ".css" else JS_ELSEWHERE).findall(text)


def test_the_site_has_a_page_for_each_file(site: Path) -> None:
    assert {page.stem for page in PAGES} <= {page.stem for page in (site / "docs").glob("*.html")}
    assert (site / "CONTRIBUTING.html").is_file()
    assert 'url=docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css", ".js")]
    assert len(files) > len(PAGES)
    assert {file.relative_to(site).as_posix(): found for file in files if (found := list(loads_of(file)))} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example/a.js"></script>'),
        ("b.html", '<link rel="stylesheet" href="//fonts.example/f.css">'),
        ("c.html", "<style>@import 'https://fonts.example/f.css';</style>"),
        ("d.html", '<p style="background: url(https://example.org/x.png)">'),
        ("e.css", "@font-face { src: url('//fonts.example/f.woff2') }"),
        ("f.js", 'const s = document.createElement("script"); s.src = "https://cdn.example/a.js"'),
    ],
)
def test_what_is_loaded_from_elsewhere_would_be_seen(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(loads_of(tmp_path / name))) == 1


def test_links_to_elsewhere_are_no_loads(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="https://arxiv.org"></a><img src="flow.png"><link href="../a.css">')
    assert list(loads_of(tmp_path / "a.html")) == []


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ("[methods](method.md)", "cross-reference target not found: 'method.md'"),
        ("[EVM](methods.md#evn)", "local id not found in doc 'docs/methods': 'evn'"),
        ("[here](#nowhere)", "cross-reference target not found: 'nowhere'"),
        ("[guide](../CONTRIBUTING.md#adding-a-stag)", "local id not found in doc 'CONTRIBUTING': 'adding-a-stag'"),
        ("![flow](flaw.png)", "image file not readable: docs/flaw.png"),
    ],
)
def test_a_broken_link_ends_the_build(checkout: Checkout, site: Path, broken: str, complaint: str) -> None:
    page = checkout.root / "docs" / "own-data.md"
    whole = page.read_text(encoding="utf-8")
    try:
        page.write_text(f"{whole}\n{broken}\n", encoding="utf-8")
        done = checkout.build("broken")
    finally:
        page.write_text(whole, encoding="utf-8")
    assert done.returncode == 1
    assert complaint in done.stderr


def test_a_page_that_nothing_leads_to_ends_the_build(checkout: Checkout, site: Path) -> None:
    page = checkout.root / "docs" / "forgotten.md"
    try:
        page.write_text("# Forgotten\n", encoding="utf-8")
        done = checkout.build("forgotten")
    finally:
        page.unlink()
    assert done.returncode == 1
    assert "forgotten.md: WARNING: document isn't included in any toctree" in done.stderr


def test_every_benchmark_is_on_the_page_of_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(\.\./benchmarks/(.*?)\)", page)) == {path.name for path in ROOT.glob("benchmarks/*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_a_page_imports_what_there_is(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        imports = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(body=list(imports), type_ignores=[]), page.name, "exec"), {})
