"""Who computes in a single process what actors may share: EVM's distances, or products with training rows."""

from __future__ import annotations

from typing import Any

from oscbench.numerics.evm.gallery import Gallery
from oscbench.numerics.evm.source import LocalSource, NeighborSource
from oscbench.numerics.topk import ProductRows, ProductSource

AnySource = NeighborSource | ProductSource


def local_source(gallery: Gallery | ProductRows, **options: Any) -> AnySource:
    """A source that computes in this process; options are those of ``LocalSource``, products need none."""
    return gallery if isinstance(gallery, ProductRows) else LocalSource(gallery, **options)
