"""Where finished stages are kept: a local folder to work in and, beside it, a file system that others see too."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscbench.artifacts import META, atomic_folder, is_complete
from oscbench.errors import OscbenchError, UsageError


def check_local(runs: Path) -> Path:
    """``runs``, refused when it is an address: results go to a local folder for now."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", str(runs)):  # a path joins the two slashes of an address to one
        raise UsageError(f"--runs {runs} is an address, not a folder; give a local path and copy it when all is done")
    return runs


@dataclass(frozen=True)
class Store:
    """Stage folders by name (``demo-1a2b3c4d/p1/train-5e6f7a8b``) below a local folder.

    Work happens in the local folder. With a ``filesystem`` of pyarrow's, finished folders are published there whole,
    ``meta.json`` last, so that a reader never takes a half-written one for finished, and fetched from there when they
    are missing here.

    Attributes:
        root: The local folder.
        filesystem: A ``pyarrow.fs.FileSystem``, its root being the place of all stages; ``None``: the folder is all.
    """

    root: Path
    filesystem: Any = None

    def folder(self, name: str) -> Path:
        """The local folder of a stage, whether it is there or not."""
        return self.root / name

    def exists(self, name: str) -> bool:
        """Whether the finished stage is here or was published."""
        return is_complete(self.folder(name)) or self._published(name)

    def fetch(self, name: str) -> Path:
        """The local folder of a finished stage, brought here first where only others have it."""
        folder = self.folder(name)
        if is_complete(folder) or not self._published(name):
            return folder
        from pyarrow import fs

        with atomic_folder(folder) as temporary:
            try:
                fs.copy_files(name, str(temporary), source_filesystem=self.filesystem)
            except OSError as error:
                raise OscbenchError(f"cannot fetch {name} ({error}); run the same command again") from error
        return folder

    def publish(self, name: str) -> None:
        """Makes a finished stage visible to others; a store without a file system has nothing to do."""
        if self.filesystem is None:
            return
        folder = self.folder(name)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != META)
        try:
            for path in [*files, *sorted(folder.rglob(META), reverse=True)]:  # the folder's own is the last
                target = f"{name}/{path.relative_to(folder).as_posix()}"
                self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
                with path.open("rb") as source, self.filesystem.open_output_stream(target) as out:
                    shutil.copyfileobj(source, out, 1 << 20)
        except OSError as error:
            raise OscbenchError(f"cannot publish {folder} ({error}); run the same command again") from error

    def _published(self, name: str) -> bool:
        if self.filesystem is None:
            return False
        from pyarrow import fs

        return bool(self.filesystem.get_file_info(f"{name}/{META}").type == fs.FileType.File)
