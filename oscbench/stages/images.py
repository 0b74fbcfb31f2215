"""Images: the embedded data, drawn for one protocol. A user's own images are where they are and need no stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oscbench.data.demo import DemoConfig, draw_demo
from oscbench.data.looks import GENERATOR
from oscbench.progress import show_progress
from oscbench.protocols.base import Protocol
from oscbench.stages.runner import Session
from oscbench.stages.stage import Stage
from oscbench.stages.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class ImagesConfig:
    """What decides every byte: the settings, the version of the drawing, and the classes drawn in either folder."""

    demo: DemoConfig
    generator: int
    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImagesResult:
    """How many were drawn."""

    images: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Images(Stage[ImagesConfig, ImagesResult]):
    """A small ILSVRC-shaped tree of JPEG files; a class folder appears whole, so that drawing goes on where it was."""

    name = "images"
    config_type, result_type = ImagesConfig, ImagesResult
    resumes = True

    protocol: Protocol

    @classmethod
    def of(cls, workspace: Workspace) -> Images:
        """The images of a workspace with embedded data."""
        assert workspace.demo is not None, "a user's own images are not drawn"
        protocol = workspace.protocol
        config = ImagesConfig(
            demo=workspace.demo,
            generator=GENERATOR,
            train=protocol.classes[: protocol.n_known + len(protocol.negative)],
            test=protocol.classes,
        )
        return cls(room=workspace.room, config=config, protocol=protocol)

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"{self.n_images} images of {len(self.config.test)} classes"

    @property
    def n_images(self) -> int:
        """How many there are in the end."""
        demo = self.config.demo
        return len(self.config.train) * demo.per_class + len(self.config.test) * demo.test_per_class

    @property
    def root(self) -> Path:
        """The folder with ``train/`` and ``val/``."""
        return self.folder / "tree"

    def seconds(self, session: Session) -> float:
        """By 700 images of the default size per second and CPU."""
        return self.n_images * (self.config.demo.size / 72) ** 2 / (700 * session.resources().cpus)

    def make(self, work: Path, session: Session) -> ImagesResult:
        """Draws what is missing."""
        with show_progress("drawing demo images") as progress:
            draw_demo(work / "tree", self.config.demo, self.protocol, progress)
        return ImagesResult(images=self.n_images)
