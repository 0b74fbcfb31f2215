"""``methods``: what the algorithms and losses are, need and cost, and their hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from oscbench.report.methods import Document


@dataclass(frozen=True, kw_only=True)
class Methods:
    """Algorithms and losses, as they say of themselves.

    Attributes:
        document: All in plain values, as ``oscbench methods --json`` prints it.
        algorithms: A document for each.
        losses: Likewise.
        groups: The algorithms that the name of a group stands for, whatever was asked for.
    """

    document: Document
    algorithms: tuple[Document, ...]
    losses: tuple[Document, ...]
    groups: dict[str, tuple[str, ...]]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each; ``settings`` counts the shipped grid."""
        import pandas as pd

        rows = [
            {name: entry.get(name) for name in ("name", "kind", "label", "cost")}
            | {"settings": entry.get("grid_size"), "needs": ", ".join(entry["needs"]), "paper": entry["paper"]}
            for entry in (*self.algorithms, *self.losses)
        ]
        return pd.DataFrame(rows).astype({"settings": "Int64"})

    @property
    def hyperparameters(self) -> pd.DataFrame:
        """A row for each hyperparameter: its type, default, shipped grid and range, as text, and what it means."""
        import pandas as pd

        from oscbench.report.methods import hyperparameter_rows

        columns = ["name", "hyperparameter", "type", "default", "grid", "range", "meaning"]
        entries = (*self.algorithms, *self.losses)
        rows = [{"name": entry["name"]} | row for entry in entries for row in hyperparameter_rows(entry)]
        return pd.DataFrame(rows, columns=columns).fillna("-")


def methods(name: str | None = None) -> Methods:
    """All algorithms and losses, or the one, or the group of algorithms, called ``name``.

    >>> methods("evm").hyperparameters["hyperparameter"].tolist()
    ['tail_size', 'distance_multiplier', 'cover_threshold', 'metric', 'negatives']
    >>> [entry["label"] for entry in methods("eos").losses]
    ['EOS']
    """
    from oscbench.report.methods import all_methods, find_method

    known = all_methods()
    chosen = known if name is None else find_method(known, name)
    by_kind: dict[str, list[Document]] = {"algorithm": [], "loss": []}
    if "kind" in chosen:
        by_kind[chosen["kind"]].append(chosen)
    else:
        by_kind = {"algorithm": chosen["algorithms"], "loss": chosen.get("losses", [])}
    return Methods(
        document=chosen,
        algorithms=tuple(by_kind["algorithm"]),
        losses=tuple(by_kind["loss"]),
        groups={group: tuple(members) for group, members in known["groups"].items()},
    )
