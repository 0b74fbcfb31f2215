"""``extract``: network outputs of all splits as feature sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oscbench.api.session import Loader, chosen_losses, session_for, training_options
from oscbench.errors import UsageError
from oscbench.store import check_local

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.features import FeatureSet
    from oscbench.stages.features import AnyFeatures
    from oscbench.stages.runner import Session
    from oscbench.stages.stage import Step


@dataclass(frozen=True, kw_only=True)
class ExtractResult:
    """Features that are extracted.

    Attributes:
        features: Those of one network for each loss, finished; of a dry run none.
        plan: Of a dry run, every stage with what there is of it.
    """

    features: tuple[AnyFeatures, ...] = ()
    plan: tuple[Step, ...] = ()

    @property
    def reports(self) -> list[dict[str, Any]]:
        """Of each network what it is, where its features lie, and the number of samples of each split."""
        return [
            {
                "loss": features.origin.training,
                "network": features.origin.network,
                "recipe": features.origin.recipe,
                "train": features.origin.train,
                "folder": str(features.folder),
                "samples": features.result.samples,
            }
            for features in self.features
        ]

    @property
    def folders(self) -> list[Path]:
        """Of the features, each with ``train/``, ``val/`` and ``test/``."""
        return [features.folder for features in self.features]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each of the reports; ``n_train``, ``n_val`` and ``n_test`` count the samples."""
        import pandas as pd

        rows = self.reports
        for row in rows:
            row |= {f"n_{split}": count for split, count in row.pop("samples").items()}
        return pd.DataFrame(rows)

    def load(self) -> dict[str, dict[str, FeatureSet]]:
        """The feature sets by loss and split, memory-mapped."""
        return {features.origin.training: features.load().by_name() for features in self.features}


def extract(
    protocol: int | str,
    loss: str | Sequence[str] = "softmax",
    *,
    data: str = "demo",
    runs: str | Path = "runs",
    name: str | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    network: str | None = None,
    num_workers: int = 1,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    local: bool = False,
    loader: Loader = "auto",
    yes: bool = False,
    dry_run: bool = False,
    session: Session | None = None,
) -> ExtractResult:
    """Logits, embedding and pooled vectors of train, val and test, as ``oscbench extract`` writes them.

    The network is the one last trained (or given by ``checkpoint``) for each loss and the seed; what is missing of it
    is trained first, and what is there is re-used.

    Args:
        protocol: 1, 2, 3, or a protocol file of one's own.
        loss: ``softmax``, ``garbage``, ``eos``, ``objectosphere``, several of them, or ``all`` (the first three).
        data: Image folder, or ``demo`` for the embedded data.
        runs: Folder that receives all results.
        name: Name of the data below the runs folder.
        seed: Of the training.
        checkpoint: A file instead of the own training, also a published one.
        network: Architecture of ``checkpoint``.
        num_workers: Workers of a training that is not there yet.
        cpus_per_worker: CPUs of each; default: an equal share.
        gpus_per_worker: GPUs of each; default: 1 where there are.
        address: An existing Ray cluster; default: start Ray here.
        local: Run everything in this process, without Ray.
        loader: Image loader.
        yes: Agree to stages that take long.
        dry_run: Only plan.
        session: Who executes; default: one opened for this call, as ``address`` and ``local`` say.

    >>> planned = extract(1, loader="pil", local=True, dry_run=True)
    >>> [step.stage.name for step in planned.plan]
    ['images', 'samples', 'train', 'features']
    """
    from oscbench.stages.features import FeatureRequest, requested_features
    from oscbench.stages.stage import ensure, plan

    losses = chosen_losses(loss)
    if checkpoint is not None and len(losses) > 1:
        raise UsageError(f"--checkpoint is one network; name its --loss instead of {_named(loss)}")
    wanted = requested_features(
        FeatureRequest(
            runs=check_local(Path(runs)),
            protocol=str(protocol),
            losses=losses,
            seeds=(seed,),
            data=str(data),
            name=name,
            checkpoint=Path(checkpoint) if checkpoint is not None else None,
            network=network,
            options=training_options(num_workers, cpus_per_worker, gpus_per_worker, loader),
        )
    )
    with session_for(session, address, local) as executing:
        if dry_run:
            return ExtractResult(plan=tuple(plan(wanted, executing)))
        ensure(wanted, executing, yes=yes)
    return ExtractResult(features=tuple(wanted))


def _named(loss: str | Sequence[str]) -> str:
    return loss if isinstance(loss, str) else ",".join(loss)
