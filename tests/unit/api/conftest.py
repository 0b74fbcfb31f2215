"""What tests of the functions share: the command line's answer to the same call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feature_factory import write_feature_folder

from oscbench.cli import main


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The document that a command prints with ``--json``."""

    def printed(*arguments: object) -> Any:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([*map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert not caught.value.code, err
        return json.loads(out)

    return printed


@pytest.fixture
def as_printed() -> Callable[[Any], Any]:
    """A document as it comes out of JSON, which knows no tuples."""
    return lambda document: json.loads(json.dumps(document, default=str))


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """Own features."""
    return write_feature_folder(tmp_path / "own")
