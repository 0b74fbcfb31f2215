"""Draws docs/flow.png, the README's picture of what oscbench does: ``python scripts/make_flow_picture.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, GREY = "#222222", "#666666"
DATA, NETWORK, SEARCH, RESULT = "#cfe3f5", "#d7efdc", "#fbe6c8", "#eadcf2"

ROWS = [
    [
        ("protocol", "known / negative /\nunknown classes", "protocol", DATA),
        ("sample tables", "train, val, test", "protocol export", DATA),
        (".beton files", "FFCV, images\nresized once", "data convert", DATA),
        ("training", "SoftMax, Garbage, EOS\non Ray Train", "train", NETWORK),
        ("features", "logits, embedding,\npooled, per sample", "extract", NETWORK),
    ],
    [
        ("search", "settings in one pass;\nPROSER on Ray Train", "tune", SEARCH),
        ("live page", "every trial as\nit finishes", "watch", SEARCH),
        ("scores", "MSS, MLS, OpenMax,\nEVM, PROSER", "evaluate", RESULT),
        ("threshold", "for the FPR\nyou can afford", "threshold", RESULT),
        ("tables, plots", "CSV, parquet,\nPNG, PDF", "export", RESULT),
    ],
]
WIDTH, HEIGHT, STEP_X, STEP_Y = 2.3, 1.15, 2.8, 2.1


def draw_box(axes: Axes, x: float, y: float, title: str, detail: str, verb: str, colour: str) -> None:
    """One stage with what it holds, and the verb that makes it below."""
    axes.add_patch(
        FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0.04,rounding_size=0.12", fc=colour, ec=INK)
    )
    axes.text(x + WIDTH / 2, y + HEIGHT - 0.22, title, ha="center", va="center", weight="bold", size=11, color=INK)
    axes.text(x + WIDTH / 2, y + 0.40, detail, ha="center", va="center", size=8.5, color=INK, linespacing=1.25)
    axes.text(
        x + WIDTH / 2, y - 0.22, f"oscbench {verb}", ha="center", va="center", size=8, color=GREY, family="monospace"
    )


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: str = "arc3") -> None:
    """From one stage to the next."""
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, color=INK, connectionstyle=bend, lw=1.2)
    )


def main() -> None:
    """Draws and saves the picture."""
    figure, axes = plt.subplots(figsize=(11.2, 3.7))
    for row, stages in enumerate(ROWS):
        y = (1 - row) * STEP_Y
        for column, stage in enumerate(stages):
            draw_box(axes, column * STEP_X, y, *stage)
            if column:
                middle = y + HEIGHT / 2
                draw_arrow(axes, (column * STEP_X - 0.42, middle), (column * STEP_X - 0.07, middle))
    last = 4 * STEP_X + WIDTH / 2
    turn = STEP_Y - 0.55
    axes.plot([last, last, WIDTH / 2, WIDTH / 2], [STEP_Y - 0.36, turn, turn, HEIGHT + 0.3], color=INK, lw=1.2)
    draw_arrow(axes, (WIDTH / 2, HEIGHT + 0.4), (WIDTH / 2, HEIGHT + 0.06))
    axes.set_xlim(-0.15, 4 * STEP_X + WIDTH + 0.15)
    axes.set_ylim(-0.45, STEP_Y + HEIGHT + 0.15)
    axes.set_aspect("equal")
    axes.axis("off")
    out = Path(__file__).parents[1] / "docs" / "flow.png"
    out.parent.mkdir(exist_ok=True)
    figure.savefig(out, dpi=130, bbox_inches="tight", facecolor="white")
    print(out.relative_to(Path(__file__).parents[1]))


if __name__ == "__main__":
    main()
