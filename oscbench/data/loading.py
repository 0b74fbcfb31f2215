"""The one interface behind which images are loaded: by FFCV from its files, or by PIL from the images themselves."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import socket
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from oscbench.data.augment import RANDAUGMENT, centre_windows, hashed_bits, train_windows
from oscbench.data.images import Pixels, cut, read_resized
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import IntArray

if TYPE_CHECKING:
    import torch

    from oscbench.data.samples import SampleTable

logger = logging.getLogger(__name__)

Wanted = Literal["auto", "ffcv", "pil"]
"""What a user may ask for; see ``decide_loader``."""

Backend = Literal["ffcv", "pil"]
"""The loaders there are. Their pixels differ, so which one it is belongs to what decides a result."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Batch:
    """Images with their labels and sample ids; the tensors belong to the receiver and are safe to keep.

    Attributes:
        images: (B, 3, crop, crop) float32 in [0, 1], or normalised.
        labels: (B,) int64, known 0..K-1, negative -1, unknown -2.
        ids: (B,) int64, rows of the split's sample table.
    """

    images: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor


@dataclass(frozen=True)
class DataSplit:
    """Where one split's images are: below ``root`` as its table says and, once converted, in one FFCV file."""

    root: Path
    samples: SampleTable
    beton: Path | None = None

    def __len__(self) -> int:
        return len(self.samples.labels)


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Random colour and geometry operations after crop and flip (Cubuk et al. 2020); not in the published recipe."""

    operations: int = 2
    magnitude: int = 9

    def __post_init__(self) -> None:
        if self.operations < 1 or not 0 <= self.magnitude <= 30:
            raise UsageError(
                f"RandAugment needs operations >= 1 and magnitude in 0..30, got {self.operations} and {self.magnitude}"
            )


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What happens to an image between disk and network.

    Attributes:
        crop: Side of the square that the network sees.
        stored_side: Shorter side to which images are resized first.
        train: Hashed random crop and flip; otherwise the centre crop.
        seed: Seed of the crops, flips and RandAugment.
        flip: Whether training mirrors half of the images.
        randaugment: Further augmentation in training.
        normalise: Subtract ImageNet's mean and divide by its deviation; the published recipe does not.
        threads: Threads that decode, this worker's own share of the CPUs.
        backend: Which loader; see ``decide_loader``.
    """

    crop: int = 224
    stored_side: int = 256
    train: bool
    seed: int = 0
    flip: bool = True
    randaugment: RandAugment | None = None
    normalise: bool = False
    threads: int = 1
    backend: Backend = "pil"

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.stored_side:
            raise UsageError(f"crop must lie in 1..{self.stored_side} (the stored side), got {self.crop}")
        if self.threads < 1:
            raise UsageError(f"a loader needs at least 1 thread, got {self.threads}")

    def windows(self, epoch: int, ids: IntArray, heights: IntArray, widths: IntArray) -> IntArray:
        """(N, 3) top, left and flip of each sample's crop: the one definition of both transforms."""
        if not self.train:
            return centre_windows(heights, widths, crop=self.crop)
        return train_windows(ids, heights, widths, crop=self.crop, flip=self.flip, seed=self.seed, epoch=epoch)


class ImageLoader(Protocol):
    """Reads one split's images in whatever order it is asked for."""

    def epoch(self, epoch: int, ids: IntArray, batch_size: int) -> Iterator[Batch]:
        """Yields exactly these samples in this order; the last batch may be smaller.

        Args:
            epoch: Number of the epoch; with the seed it decides crops and flips in training.
            ids: Sample ids, repeats allowed; the caller shuffles and shards, so that runs repeat and resume.
            batch_size: Samples per batch.
        """
        ...

    def close(self) -> None:
        """Ends threads and frees memory; the loader cannot be used afterwards."""
        ...


def ffcv_problem() -> str:
    """Why FFCV cannot be used here, or ``""``; loads its compiled part alone, since importing all takes seconds."""
    try:
        found = importlib.util.find_spec("ffcv")
        folders = found.submodule_search_locations if found is not None else None
        if not folders:
            raise ImportError("it is not installed")
        compiled = next((path for folder in folders for path in Path(folder).glob("_libffcv*.so")), None)
        if compiled is None:
            raise ImportError("its compiled part is missing")
        ctypes.CDLL(str(compiled))
    except (ImportError, OSError, ValueError) as error:  # not installed, or built for a library that is not here
        return f"ffcv cannot be imported ({error})"
    return ""


def decide_loader(wanted: Wanted, *, converted: bool) -> Backend:
    """The loader for all workers, decided once where the command runs, so that a result has one kind of pixels.

    Args:
        wanted: ``auto`` takes FFCV where it can be imported here, else PIL.
        converted: Whether the FFCV files are there; then FFCV may be asked for without having it here, only the workers
            need it.

    Raises:
        UsageError: FFCV is asked for, but nothing is converted and nothing can be.
    """
    if wanted == "pil":
        return "pil"
    problem = ffcv_problem()
    if not problem or (wanted == "ffcv" and converted):
        return "ffcv"
    if wanted == "ffcv":
        raise UsageError(f"{problem}; `oscbench doctor` says how to get it, or use --loader pil")
    logger.log(logging.WARNING if converted else logging.INFO, "%s: images are read with PIL", problem)
    return "pil"


def open_loader(source: DataSplit, config: LoaderConfig) -> ImageLoader:
    """The loader of a split, exactly the one that was decided on: the other one's pixels would be another result."""
    if config.backend == "pil":
        return PilLoader(source, config)
    if source.beton is None:
        raise UsageError("the FFCV loader needs a converted file; run `oscbench data convert` or use --loader pil")
    host = socket.gethostname()
    if not source.beton.is_file():
        raise OscbenchError(
            f"{source.beton} is missing on {host}; make it with `oscbench data convert` where all nodes see it, or use "
            "--loader pil"
        )
    try:
        from oscbench.data.ffcv import FfcvLoader
    except ImportError as error:
        raise OscbenchError(
            f"ffcv cannot be imported ({error}) on {host}, so {source.beton} cannot be read there; install FFCV on it "
            "(`oscbench doctor` says how), or use --loader pil"
        ) from error

    return FfcvLoader(source, config)


def check_request(source: DataSplit, ids: IntArray, batch_size: int) -> IntArray:
    """The ids as int64; raises when one is outside the sample table or a batch would be empty."""
    if batch_size < 1:
        raise UsageError(f"batch size must be at least 1, got {batch_size}")
    ids = np.asarray(ids, np.int64)
    bad = np.flatnonzero((ids < 0) | (ids >= len(source)))
    if len(bad):
        raise UsageError(f"sample id {ids[bad[0]]} is outside the table's 0..{len(source) - 1}")
    return ids


def float_table(normalise: bool) -> NDArray[np.float32]:
    """(3, 256) what each level of each channel becomes: level / 255, or that normalised by ImageNet's statistics.

    Every loader looks its floats up here, so that they agree to the last bit.
    """
    table = np.tile(np.arange(256, dtype=np.float32) / np.float32(255), (3, 1))
    if normalise:
        mean, std = (np.array(values, np.float32)[:, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
        table = (table - mean) / std
    return table


def to_floats(pixels: NDArray[np.uint8], table: NDArray[np.float32]) -> NDArray[np.float32]:
    """(B, 3, H, W) floats of (B, H, W, 3) pixels."""
    images = np.empty((len(pixels), 3, *pixels.shape[1:3]), np.float32)
    for channel in range(3):
        images[:, channel] = table[channel][pixels[..., channel]]
    return images


def make_batch(images: NDArray[np.float32], ids: IntArray, labels: IntArray) -> Batch:
    """A batch of these images, with the labels that the whole split's ``labels`` give to ``ids``."""
    import torch

    return Batch(torch.from_numpy(images), torch.from_numpy(labels[ids]), torch.from_numpy(ids.copy()))


def randaugmented(pixels: NDArray[np.uint8], ids: IntArray, config: LoaderConfig, epoch: int) -> NDArray[np.uint8]:
    """(B, H, W, 3) pixels after RandAugment, each image under its own hashed seed; unchanged when it is off."""
    if config.randaugment is None or not config.train:
        return pixels
    import torch

    from oscbench.torchvision_import import torchvision

    v2 = importlib.import_module(f"{torchvision.__name__}.transforms.v2")
    transform = v2.RandAugment(config.randaugment.operations, config.randaugment.magnitude)
    out = np.empty_like(pixels)
    with torch.random.fork_rng(devices=[]):
        for row, bits in enumerate(hashed_bits(config.seed, epoch, ids, RANDAUGMENT).tolist()):
            torch.manual_seed(bits)
            image = torch.from_numpy(pixels[row].copy()).permute(2, 0, 1)
            out[row] = transform(image).permute(1, 2, 0).numpy()
    return out


class PilLoader:
    """Decodes and resizes the original images with PIL: needs neither conversion nor FFCV, and is its oracle."""

    def __init__(self, source: DataSplit, config: LoaderConfig) -> None:
        self.source = source
        self.config = config
        self._table = float_table(config.normalise)
        self._pool = ThreadPoolExecutor(config.threads, thread_name_prefix="pil-loader")

    def epoch(self, epoch: int, ids: IntArray, batch_size: int) -> Iterator[Batch]:
        """See ``ImageLoader.epoch``."""
        return self._batches(epoch, check_request(self.source, ids, batch_size), batch_size)

    def _batches(self, epoch: int, ids: IntArray, batch_size: int) -> Iterator[Batch]:
        ahead: deque[tuple[IntArray, list[Future[Pixels]]]] = deque()
        try:
            for start in range(0, len(ids), batch_size):
                part = ids[start : start + batch_size]
                ahead.append((part, [self._pool.submit(self._pixels, epoch, int(i)) for i in part]))
                if len(ahead) > _BATCHES_AHEAD:
                    yield self._finished(epoch, *ahead.popleft())
            while ahead:
                yield self._finished(epoch, *ahead.popleft())
        finally:
            for _, futures in ahead:
                for future in futures:
                    future.cancel()

    def _finished(self, epoch: int, ids: IntArray, futures: list[Future[Pixels]]) -> Batch:
        pixels = np.stack([future.result() for future in futures])
        pixels = randaugmented(pixels, ids, self.config, epoch)
        return make_batch(to_floats(pixels, self._table), ids, self.source.samples.labels)

    def _pixels(self, epoch: int, sample_id: int) -> Pixels:
        image = read_resized(self.source.root / self.source.samples.paths[sample_id], self.config.stored_side)
        height, width = image.shape[:2]
        (window,) = self.config.windows(epoch, *(np.array([x]) for x in (sample_id, height, width)))
        return cut(image, window, self.config.crop)

    def close(self) -> None:
        """See ``ImageLoader.close``."""
        self._pool.shutdown(wait=True, cancel_futures=True)
