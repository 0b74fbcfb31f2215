"""FFCV files: writing them, checking them and loading from them; everything of FFCV 1.0.2 is kept in here.

How its traps are met: the loader is asked for explicit rows (it repeats or drops samples by itself in places),
crop and flip are planned outside and handed in with the rows (its random numbers cannot be seeded), an error in
its reader thread is passed on (it would wait for ever), thread counts of torch and numba are put back (it sets
both for the whole process), every batch gets memory of its own instead of a slot in its ring of buffers, and its
import does not compile a dictionary of two numbers.
"""

from __future__ import annotations

import contextlib
import queue
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from oscbench.data.images import StoredImage
from oscbench.data.loading import (
    Batch,
    DataSplit,
    LoaderConfig,
    check_request,
    float_table,
    make_batch,
    randaugmented,
    to_floats,
)
from oscbench.errors import OscbenchError, UsageError
from oscbench.labels import IntArray


@contextlib.contextmanager
def kept_thread_counts() -> Iterator[None]:
    """Puts torch's and numba's thread counts back, which importing ffcv and building its Loader change."""
    torch_threads, numba_threads = torch.get_num_threads(), numba.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        numba.set_num_threads(numba_threads)


@contextlib.contextmanager
def _plain_dictionaries() -> Iterator[None]:
    """FFCV keeps two numbers in a dictionary of numba's, which takes four seconds to compile in every process.

    They are read by Python alone, so a plain one serves.
    """
    compiled = numba.typed.Dict
    numba.typed.Dict = dict
    try:
        yield
    finally:
        numba.typed.Dict = compiled


with kept_thread_counts(), _plain_dictionaries():
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES, SimpleRGBImageDecoder
    from ffcv.libffcv import imdecode
    from ffcv.loader import Loader, OrderOption
    from ffcv.loader.epoch_iterator import EpochIterator
    from ffcv.pipeline.compiler import Compiler
    from ffcv.reader import Reader
    from ffcv.types import (
        ALLOC_TABLE_TYPE,
        CURRENT_VERSION,
        TYPE_ID_HANDLER,
        FieldDescType,
        HeaderType,
        get_metadata_type,
    )

_decode_jpeg = Compiler.compile(imdecode)  # once per process, however many loaders use it
JPEG, RAW = int(IMAGE_MODES["jpg"]), int(IMAGE_MODES["raw"])
_FIELDS = {"image": RGBImageField, "label": IntField, "id": IntField}
_METADATA = get_metadata_type([field() for field in _FIELDS.values()])
_BATCHES_AHEAD = 2
_PAGE = 8 << 20
"""Bytes of a page of image data; no image crosses a page."""


# --- writing -----------------------------------------------------------------------------------------------------


def write_beton(path: Path, labels: IntArray, images: Iterable[StoredImage]) -> None:
    """Writes an FFCV file with the fields image, label and id; equal input gives equal bytes.

    FFCV's own ``DatasetWriter`` waits for ever when one of its processes fails and orders the data by chance, so
    the layout (header, field table, sample table, pages of image data, table of allocations) is written here.

    Args:
        path: The file; the caller provides atomicity.
        labels: (N,) labels, one per image; the id is the row.
        images: N images in order.
    """
    n = len(labels)
    descriptors = _field_descriptors()
    table_start = HeaderType.itemsize + descriptors.nbytes
    samples = np.zeros(n, _METADATA)
    samples["f1"], samples["f2"] = labels, np.arange(n)
    allocations = np.zeros(n, ALLOC_TABLE_TYPE)
    with path.open("wb") as file:
        position = _next_page(table_start + samples.nbytes)
        for row, image in zip(range(n), images, strict=True):
            size = len(image.data)
            if size > _PAGE:
                raise OscbenchError(
                    f"image {row} takes {size} bytes, an FFCV page holds {_PAGE}; use --mode jpeg or a smaller --side"
                )
            if position % _PAGE + size > _PAGE:
                position = _next_page(position)
            file.seek(position)
            file.write(image.data)
            mode = RAW if image.raw else JPEG
            samples["f0"][row] = (mode, image.width, image.height, position)
            allocations[row] = (row, position, size)
            position += size
        end = _next_page(position)
        file.seek(end)
        file.write(allocations.tobytes())
        header = np.zeros((), HeaderType)
        header["version"], header["num_fields"], header["page_size"] = CURRENT_VERSION, len(_FIELDS), _PAGE
        header["num_samples"], header["alloc_table_ptr"] = n, end
        file.seek(0)
        file.write(header.tobytes() + descriptors.tobytes() + samples.tobytes())


def _field_descriptors() -> NDArray[Any]:
    type_ids = {handler: type_id for type_id, handler in TYPE_ID_HANDLER.items()}
    descriptors = np.zeros(len(_FIELDS), FieldDescType)
    for descriptor, (name, field) in zip(descriptors, _FIELDS.items(), strict=True):
        descriptor["type_id"] = type_ids[field]
        descriptor["name"][: len(name)] = np.frombuffer(name.encode("ascii"), np.uint8)
    return descriptors


def _next_page(position: int) -> int:
    return -(-position // _PAGE) * _PAGE


# --- checking ----------------------------------------------------------------------------------------------------


def open_reader(path: Path) -> Any:
    """FFCV's reader of a file whose structure is whole; a missing, truncated or foreign file is named."""
    if not path.is_file():
        raise UsageError(f"{path} is missing; make it with `oscbench data convert`")
    try:
        reader = Reader(str(path))
        problem = _structural_problem(reader, path.stat().st_size)
    except (AssertionError, ValueError, IndexError, KeyError, OverflowError, MemoryError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise OscbenchError(f"{path} is damaged ({problem}); delete it and run `oscbench data convert` again")
    return reader


def _structural_problem(reader: Any, file_size: int) -> str:
    """What contradicts itself in the file's tables, or ``""``; reads no image."""
    if list(reader.handlers) != list(_FIELDS):
        return f"fields are {', '.join(reader.handlers)}, expected {', '.join(_FIELDS)}"
    n = int(reader.num_samples)
    table_end = int(reader.header["alloc_table_ptr"]) + n * ALLOC_TABLE_TYPE.itemsize
    if file_size != table_end or len(reader.alloc_table) != n or len(reader.metadata) != n or n == 0:
        return f"{file_size} bytes, its header announces {table_end} for {n} samples"
    images, sizes, end = reader.metadata["f0"], np.zeros(n, np.uint64), reader.header["alloc_table_ptr"]
    rows = reader.alloc_table["sample_id"]
    if rows.max() >= n or len(np.unique(rows)) != n:
        return "its table of allocations does not name each sample once"
    sizes[rows] = reader.alloc_table["size"]
    if np.any(reader.alloc_table["ptr"][np.argsort(rows)] != images["data_ptr"]):
        return "its two tables place an image differently"
    if np.any(images["data_ptr"] > end) or np.any(sizes > end - images["data_ptr"]):
        return "an image lies beyond the end"
    raw_sizes = images["height"].astype(np.uint64) * images["width"] * np.uint64(3)
    if np.any((images["mode"] != JPEG) & ((images["mode"] != RAW) | (sizes != raw_sizes))):
        return "an image has an unknown mode or a wrong size"
    return ""


def check_beton(reader: Any, path: Path, labels: IntArray, stored_side: int) -> None:
    """Raises when a whole file is not the one of this sample table and image size."""
    remedy = "run `oscbench data convert` again"
    if len(labels) != reader.num_samples:
        raise UsageError(f"{path} holds {reader.num_samples} samples, the sample table {len(labels)}; {remedy}")
    if not np.array_equal(reader.metadata["f2"], np.arange(len(labels))):
        raise UsageError(f"{path}: sample ids are not the rows of the table; {remedy}")
    differing = np.flatnonzero(reader.metadata["f1"] != labels)
    if len(differing):
        row = differing[0]
        raise UsageError(
            f"{path}: sample {row} has label {reader.metadata['f1'][row]}, the sample table says {labels[row]} "
            f"({len(differing)} such samples); {remedy}"
        )
    sides = np.minimum(reader.metadata["f0"]["height"], reader.metadata["f0"]["width"])
    if np.any(sides != stored_side):
        raise UsageError(
            f"{path} stores images of shorter side {sides.min()}..{sides.max()}, asked for {stored_side}; "
            f"{remedy} with --side {stored_side}"
        )


# --- loading -----------------------------------------------------------------------------------------------------


class FfcvLoader:
    """Loads from an FFCV file: decoding, crop and flip in compiled threads beside the network's computation.

    Raw images come out exactly as PIL reads them. FFCV decodes JPEG with the fast DCT: at quality 90 a pixel lies
    within 8 levels of PIL's decoding of the same bytes and within 1.5 on average (measured: 6 and 1.1 at most, on
    white noise; 5 and 1.0 on pictures).
    The first batch compiles for about a second, once per loader.
    """

    def __init__(self, source: DataSplit, config: LoaderConfig) -> None:
        if source.beton is None:
            raise UsageError("the FFCV loader needs a converted file; run `oscbench data convert`")
        self.source = source
        self.config = config
        self.path = source.beton
        check_beton(open_reader(self.path), self.path, source.samples.labels, config.stored_side)
        self._table = float_table(config.normalise)
        self._running: weakref.WeakSet[_Epoch] = weakref.WeakSet()
        augmenting = config.train and config.randaugment is not None
        decoder = _CropDecoder(config.crop, None if augmenting else self._table)
        with kept_thread_counts():
            self._loader: Any = Loader(
                str(self.path),
                batch_size=1,  # each epoch brings its own
                num_workers=min(config.threads, numba.config.NUMBA_NUM_THREADS),
                order=OrderOption.SEQUENTIAL,  # likewise
                os_cache=True,
                seed=0,
                drop_last=False,
                batches_ahead=_BATCHES_AHEAD,
                pipelines={"image": [decoder], "label": None, "id": None},
            )

    def epoch(self, epoch: int, ids: IntArray, batch_size: int) -> Iterator[Batch]:
        """See ``ImageLoader.epoch``."""
        return self._batches(epoch, check_request(self.source, ids, batch_size), batch_size)

    def _batches(self, epoch: int, ids: IntArray, batch_size: int) -> Iterator[Batch]:
        if len(ids) == 0:
            return
        stored = self._loader.reader.metadata["f0"][ids]
        heights, widths = (stored[name].astype(np.int64) for name in ("height", "width"))
        plan = np.column_stack([ids, self.config.windows(epoch, ids, heights, widths)])
        self._loader.batch_size = batch_size
        running = _Epoch(self._loader, plan, self.path)
        self._running.add(running)
        try:
            for start in range(0, len(ids), batch_size):
                part, images = ids[start : start + batch_size], next(running)
                if images.dtype == np.uint8:
                    images = to_floats(randaugmented(images, part, self.config, epoch), self._table)
                yield make_batch(images, part, self.source.samples.labels)
        finally:
            running.stop()

    def close(self) -> None:
        """See ``ImageLoader.close``."""
        for running in list(self._running):
            running.stop()
        self._loader = None


class _CropDecoder(SimpleRGBImageDecoder):  # type: ignore[misc]
    """Decodes row ``plan[k, 0]`` and cuts the crop at ``plan[k, 1:]`` = (top, left, flip), all planned outside.

    With a table the result is (3, crop, crop) floats, without it (crop, crop, 3) pixels. turbojpeg's answer for each
    image, which FFCV's own decoders ignore, goes into a second array.
    """

    def __init__(self, crop: int, table: NDArray[np.float32] | None) -> None:
        super().__init__()
        self.crop = crop
        self.table = table
        self._code: Callable[..., Any] | None = None

    def empty(self, n: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Arrays for the images of a batch and turbojpeg's answers."""
        if self.table is None:
            return np.empty((n, self.crop, self.crop, 3), np.uint8), np.empty(n, np.int32)
        return np.empty((n, 3, self.crop, self.crop), np.float32), np.empty(n, np.int32)

    def declare_state_and_memory(self, previous_state: Any) -> tuple[Any, None]:
        """Asks for no ring of buffers: each batch brings its own memory (``_Epoch``), which the receiver may keep."""
        images, _ = self.empty(0)
        return replace(previous_state, jit_mode=True, shape=images.shape[1:], dtype=images.dtype), None

    def generate_code(self) -> Callable[..., Any]:
        """The function that FFCV compiles; the same one each time it asks, which is once per epoch."""
        if self._code is None:
            self._code = self._make_code()
        return self._code

    def _make_code(self) -> Callable[..., Any]:
        read, parallel_range, jpeg = self.memory_read, Compiler.get_iterator(), JPEG
        store = _pixel_store(self.crop) if self.table is None else _float_store(self.crop, self.table)

        def decode(plan, buffers, metadata, storage_state):  # type: ignore[no-untyped-def]
            images, status = buffers
            for k in parallel_range(len(plan)):
                row, top, left, flip = plan[k]
                field = metadata[row]
                data = read(field["data_ptr"], storage_state)
                height, width = np.uint32(field["height"]), np.uint32(field["width"])
                status[k] = 0
                if field["mode"] == jpeg:
                    image = np.empty((height, width, 3), np.uint8)
                    status[k] = _decode_jpeg(data, image, height, width, height, width, 0, 0, 1, 1, False, False)
                else:
                    image = data.reshape(height, width, 3)
                first, step = (left + crop_end, -1) if flip else (left, 1)
                store(image, top, first, step, images[k])
            return images

        crop_end = self.crop - 1
        decode.is_parallel = True  # type: ignore[attr-defined]
        return decode


def _float_store(crop: int, table: NDArray[np.float32]) -> Any:
    @numba.njit(nogil=True)
    def store(image, top, first, step, out):  # type: ignore[no-untyped-def]
        for y in range(crop):
            for x in range(crop):
                column = first + step * x
                for channel in range(3):
                    out[channel, y, x] = table[channel, image[top + y, column, channel]]

    return store


def _pixel_store(crop: int) -> Any:
    @numba.njit(nogil=True)
    def store(image, top, first, step, out):  # type: ignore[no-untyped-def]
        for y in range(crop):
            for x in range(crop):
                for channel in range(3):
                    out[y, x, channel] = image[top + y, first + step * x, channel]

    return store


class _Epoch(EpochIterator):  # type: ignore[misc]
    """FFCV's reader thread over one epoch's plan: own memory per batch, errors passed on, an end when told to."""

    def __init__(self, loader: Any, plan: IntArray, path: Path) -> None:
        self.path = path
        super().__init__(loader, plan)  # starts the thread

    def run(self) -> None:
        """Fills the queue with batches, or with the error that ended them."""
        try:
            numba.set_num_threads(self.loader.num_workers)  # of this thread alone; FFCV would set torch's too
            ((node, decoder),) = ((node.id, node.decoder) for node in self.loader.graph.root_nodes)
            for number, plan in enumerate(self.iter_ixes):
                images, status = decoder.empty(len(plan))
                self.memory_allocations["operation"] = {node: (images[None], status[None])}  # one slot
                self.run_pipeline(number, plan, 0, None)
                self._check_decoded(plan, status)
                if not self._offer(images):
                    return
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            self._offer(error)

    def _check_decoded(self, plan: IntArray, status: NDArray[np.int32]) -> None:
        failed = np.flatnonzero(status)
        if len(failed):
            raise OscbenchError(
                f"{self.path}: image of sample {plan[failed[0], 0]} does not decode; `oscbench data verify` tells "
                f"whether the file was altered"
            )

    def _offer(self, item: Any) -> bool:
        while not self.terminate_event.is_set():
            with contextlib.suppress(queue.Full):
                self.output_queue.put(item, timeout=0.1)
                return True
        return False

    def __next__(self) -> NDArray[Any]:
        while True:
            with contextlib.suppress(queue.Empty):
                item = self.output_queue.get(timeout=0.5)
                if isinstance(item, BaseException):
                    raise item
                images: NDArray[Any] = item
                return images
            if not self.is_alive() and self.output_queue.empty():
                raise OscbenchError(f"{self.path}: the FFCV reader thread ended without a result")

    def stop(self) -> None:
        """Ends the thread and waits for it, so that an abandoned epoch leaves neither thread nor memory behind."""
        self.close()
        self.join()
