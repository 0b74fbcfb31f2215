"""One data set under one protocol: where its images are, and the room in which its stages lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oscbench.data.demo import DemoConfig
from oscbench.errors import UsageError
from oscbench.protocols.base import Protocol, load_protocol
from oscbench.stages.stage import Room

EMBEDDED = "demo"
"""What ``--data`` says for the embedded images."""


@dataclass(frozen=True)
class Workspace:
    """Data and protocol of a request.

    Attributes:
        room: Where results go.
        protocol: The classes.
        images: Folder with ``train/<wnid>/`` and ``val/<wnid>/``; ``None`` for the embedded data, which are drawn.
        demo: Settings of the embedded data; ``None`` for a folder of the user's.
        stored_side: Shorter side of stored images where nothing else is asked for.
        crop: Side of the network's input where nothing else is asked for.
    """

    room: Room
    protocol: Protocol
    images: Path | None = None
    demo: DemoConfig | None = None
    stored_side: int = 256
    crop: int = 224

    @property
    def title(self) -> str:
        """Data and protocol in words, for messages."""
        return f"{self.room.data}, protocol {self.protocol.slug}"


def open_workspace(
    *, runs: Path, data: str, protocol: str, name: str | None = None, demo: DemoConfig | None = None
) -> Workspace:
    """The workspace that ``--runs``, ``--data``, ``--protocol`` and ``--name`` mean; makes nothing yet.

    Args:
        runs: Folder of all results.
        data: ``demo``, or an image folder.
        protocol: 1, 2, 3 or a protocol file.
        name: Name of the data below ``runs``; default: ``demo-<8 hex>`` or the folder's name.
        demo: Settings of the embedded data, when not the usual ones.
    """
    loaded = load_protocol(protocol)
    if data == EMBEDDED:
        demo = demo or DemoConfig()
        room = Room(runs, name or f"demo-{demo.fingerprint[:8]}", loaded.slug)
        workspace = Workspace(room, loaded, demo=demo, stored_side=48, crop=40)
    else:
        root = Path(data)
        if not root.is_dir():
            raise UsageError(
                f"data folder {data} does not exist; give an image folder, or 'demo' for the embedded data"
            )
        workspace = Workspace(Room(runs, name or root.resolve().name, loaded.slug), loaded, images=root)
    workspace.room.refuse_older_layout()
    return workspace
