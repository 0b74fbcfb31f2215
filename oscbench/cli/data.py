"""``oscbench data``: the embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oscbench.cli.common import SeedOption, examples

data_app = typer.Typer(name="data", help="Images: draw the embedded data.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the verb group to the command."""
    app.add_typer(data_app)


@data_app.callback()
def _group() -> None:  # a group of a single verb would otherwise swallow the verb's name
    pass


@data_app.command(
    "demo",
    epilog=examples(
        "oscbench data demo --out demo-data --per-class 40 --test-per-class 10",
        "oscbench data demo --out demo-data --protocol all --size 72 --seed 0",
    ),
)
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder that receives train/ and val/.")] = Path("demo-data"),
    per_class: Annotated[int, typer.Option("--per-class", help="Images in train/ of known and negative classes.")] = 40,
    test_per_class: Annotated[int, typer.Option("--test-per-class", help="Images in val/ of every class.")] = 10,
    size: Annotated[int, typer.Option("--size", help="Side of the images in pixels.")] = 72,
    seed: SeedOption = 0,
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="1, 2, 3, all, or a protocol file.")] = "1",
) -> None:
    """Draws a small ILSVRC-shaped tree of JPEG files in which classes near in WordNet look alike.

    The defaults make 10,810 images for protocol 1: about 35 MB. A second call draws only what is missing.
    """
    from oscbench.data.demo import DemoConfig, draw_demo
    from oscbench.progress import show_progress
    from oscbench.protocols.base import PUBLISHED, load_protocol

    config = DemoConfig(per_class=per_class, test_per_class=test_per_class, size=size, seed=seed)
    for loaded in map(load_protocol, PUBLISHED if protocol == "all" else (protocol,)):
        with show_progress(f"drawing {loaded.slug}") as progress:
            draw_demo(out, config, loaded, progress)
    print(out)
