"""Contact sheets: which samples they show, and that each stands with its own image."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs_factory import make_runs

from oscbench.data.samples import read_samples
from oscbench.labels import NEGATIVE, UNKNOWN
from oscbench.metrics import ccr_fpr_sum, oscr_curve
from oscbench.report.contact_sheet import SHOWN, SIDE, best_cell, class_name, contact_sheets, thumbnail
from oscbench.report.measures import Measures
from oscbench.report.results import Results, read_results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("sheet") / "runs"
    make_runs(
        folder, protocols=("p1",), trainings=("softmax", "eos"), algorithms=("mss", "mls"), data="own", demo=False
    )
    return read_results(folder)


def colour(row: int) -> tuple[int, int, int]:
    """A colour of its own for each row, far enough from the others to survive JPEG."""
    return (row % 8 * 32 + 16, row // 8 % 8 * 32 + 16, row // 64 % 8 * 32 + 16)


@pytest.fixture
def images(results: Results, tmp_path: Path) -> Path:
    """An image folder in which the image of each test sample has the colour of its row."""
    (samples,) = (work for work in results.work if work.stage == "samples")
    for row, path in enumerate(read_samples(samples.folder / "test.csv").paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), colour(row)).save(tmp_path / path, "PNG")
    return tmp_path


def test_the_surest_stand_first_with_their_own_images(results: Results, images: Path) -> None:
    measures = Measures.of(results)
    sheets = {sheet.name: sheet for sheet in contact_sheets(results, measures, images)}
    assert set(sheets) == {"images-p1-unknown", "images-p1-negative", "images-p1-correct"}
    best = best_cell(measures, "p1")
    assert best is not None
    scores = best.splits["test"]
    rows = range(len(scores.labels))
    wanted = {
        "unknown": sorted((r for r in rows if scores.labels[r] == UNKNOWN), key=lambda r: -scores.score[r]),
        "negative": sorted((r for r in rows if scores.labels[r] == NEGATIVE), key=lambda r: -scores.score[r]),
        "correct": sorted((r for r in rows if scores.labels[r] == scores.prediction[r]), key=lambda r: scores.score[r]),
    }
    for kind, expected in wanted.items():
        shown = sheets[f"images-p1-{kind}"].images
        assert len(shown) == min(SHOWN, len(expected))
        for image, row in zip(shown, expected, strict=False):
            assert image.name == scores.classes[scores.class_index[row]]
            assert image.said.endswith(f"score {scores.score[row]:.4g}")
            assert (f"taken for {scores.classes[scores.prediction[row]]}" in image.said) == (kind != "correct")
            assert image.content is not None
            found = np.asarray(Image.open(io.BytesIO(image.content))).mean(axis=(0, 1))
            assert np.abs(found - colour(int(scores.ids[row]))).max() < 8


def test_the_best_cell_has_the_largest_sum_on_test_unknowns(results: Results) -> None:
    def total(cell: object) -> float:
        scores = cell.splits["test"]  # type: ignore[attr-defined]
        return ccr_fpr_sum(oscr_curve(scores.labels, scores.predictions, unknown_label=UNKNOWN))

    best = best_cell(Measures.of(results), "p1")
    assert best is not None
    assert total(best) == max(map(total, results.cells))
    assert best_cell(Measures.of(results), "p2") is None


def test_without_images_there_are_names_and_scores(results: Results, images: Path) -> None:
    measures = Measures.of(results)
    for sheet in contact_sheets(results, measures):
        assert all(image.content is None for image in sheet.images)
        assert sheet.note.endswith("--data FOLDER tells.")
    assert not [sheet for sheet in contact_sheets(results, measures, images) if "--data" in sheet.note]
    shutil.rmtree(images / "test")
    assert all(image.content is None for sheet in contact_sheets(results, measures, images) for image in sheet.images)


def test_classes_of_wordnet_have_names() -> None:
    assert class_name("n02087394") == "Rhodesian ridgeback"
    assert class_name("my class") == "my class"


def test_thumbnails_are_small_and_damage_is_no_image(tmp_path: Path) -> None:
    Image.effect_noise((1500, 900), 80).save(tmp_path / "large.jpg", quality=95)
    small = thumbnail(tmp_path / "large.jpg")
    assert small is not None
    assert len(small) < 15_000
    assert Image.open(io.BytesIO(small)).size == (SIDE, round(SIDE * 900 / 1500))
    (tmp_path / "damaged.jpg").write_bytes((tmp_path / "large.jpg").read_bytes()[:2000])
    assert thumbnail(tmp_path / "damaged.jpg") is None
    assert thumbnail(tmp_path / "missing.jpg") is None
