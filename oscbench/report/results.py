"""What lies in a runs folder: every finished post-processor, search and network, read without torch or Ray.

Only complete folders count. What is damaged is named, with its reason, and the rest is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from oscbench.artifacts import ASIDE, Meta, is_complete
from oscbench.errors import OscbenchError, UsageError
from oscbench.features import SET, FeatureInfo, read_info
from oscbench.labels import SPLITS
from oscbench.metrics import CcrRule
from oscbench.origin import Origin
from oscbench.papers.panel import ALGORITHMS, TRAININGS
from oscbench.records import from_mapping
from oscbench.scores import ScoreSet
from oscbench.training.recipes import Recipe, recipe_name
from oscbench.tuning.trials import read_trials

_STAGE = re.compile(r"(?P<name>[a-z][a-z-]*)-(?P<digits>[0-9a-f]{8})")
_NETWORKS = ("train", "finetune")

T = TypeVar("T")


# --- what there is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work:
    """One finished stage, whatever it made: what it took, and what it was made from and by.

    Attributes:
        inputs: Fingerprints of the stages it was made from, by their role.
        config: What decides it, as recorded.
        result: What it found out, as recorded.
        cpus: That it had; of a training all its workers'.
        gpus: Likewise; 0 of what uses none.
        created: When, in UTC.
        versions: Of Python and the packages that can change a number.
    """

    data: str
    protocol: str
    stage: str
    folder: Path
    fingerprint: str
    inputs: dict[str, str]
    config: dict[str, Any]
    result: dict[str, Any]
    seconds: float
    cpus: int
    gpus: float
    created: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One post-processor on one network under one protocol.

    Attributes:
        ccr_rule: By which the search chose the setting; empty where no search did.
        folder: Its scores.
        search: Folder of the search whose best setting it has, where that is still there.
    """

    origin: Origin
    algorithm: str
    params: dict[str, Any]
    score_kind: str
    ccr_rule: str
    folder: Path
    search: Path | None
    seconds: float
    cpus: int
    created: str
    versions: dict[str, str]

    @property
    def splits(self) -> dict[str, ScoreSet]:
        """Its scores on ``val`` and, where the data have one, on ``test``; mapped anew each time.

        Nobody holds them: a dozen files for each of hundreds of cells are more than a system lets a process have open.
        """
        return {split: ScoreSet.load(self.folder / split) for split in SPLITS if (self.folder / split).is_dir()}

    @property
    def system(self) -> tuple[str, ...]:
        """What its repetitions with other seeds have in common."""
        origin = self.origin
        return (origin.data, origin.protocol, origin.training, origin.network, origin.recipe, self.algorithm)


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """One finished search.

    Attributes:
        trials: Its table, as ``tuning.trials`` reads it.
        config: Kind of the search, its space, rule and kind of score, as recorded.
    """

    origin: Origin
    algorithm: str
    folder: Path
    trials: pd.DataFrame
    config: dict[str, Any]
    seconds: float
    cpus: int
    created: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """One network that was trained or fine-tuned here.

    Attributes:
        stage: ``train`` or ``finetune``.
        epochs: Figures of each epoch; empty where what was trained side by side has none of its own.
        config: As recorded.
    """

    origin: Origin
    folder: Path
    stage: str
    epochs: pd.DataFrame
    config: dict[str, Any]
    seconds: float
    cpus: int
    gpus: float
    created: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """All that is finished below a runs folder, in the order of data, protocol, training, algorithm and seed.

    Attributes:
        work: Every finished stage, for what it took.
        left_out: Folders that could not be read, or that a newer one of the same name replaces, and why.
    """

    runs: Path
    cells: tuple[Cell, ...]
    searches: tuple[Search, ...]
    networks: tuple[Network, ...]
    work: tuple[Work, ...]
    left_out: tuple[tuple[Path, str], ...]

    @property
    def data_sets(self) -> tuple[str, ...]:
        """Names of the data, in order."""
        named = [work.data for work in self.work] + [path.relative_to(self.runs).parts[0] for path, _ in self.left_out]
        return tuple(sorted(set(named)))

    @property
    def demo(self) -> bool:
        """Whether any of it comes from the embedded demonstration data."""
        found: Iterable[Cell | Search | Network] = (*self.cells, *self.searches, *self.networks)
        return any(each.origin.demo for each in found) or any(map(_is_drawn, self.work))

    def of(self, data: str) -> Results:
        """What belongs to one data set."""
        if data not in self.data_sets:
            raise UsageError(f"there is no data {data!r} below {self.runs}; there is {', '.join(self.data_sets)}")
        root = self.runs / data  # a folder may have been renamed since
        return dataclasses.replace(
            self,
            cells=tuple(cell for cell in self.cells if root in cell.folder.parents),
            searches=tuple(search for search in self.searches if root in search.folder.parents),
            networks=tuple(network for network in self.networks if root in network.folder.parents),
            work=tuple(work for work in self.work if root in work.folder.parents),
            left_out=tuple((path, why) for path, why in self.left_out if root in path.parents),
        )

    def preferred(self, rule: CcrRule = "inclusive") -> Results:
        """One cell of each network and algorithm, and the search it comes from: those that ``rule`` is asked of.

        By the rule its search chose by, then by kind of score (``published`` for the published rule, else the method's
        first), then the newest. Networks at their best epoch are left out.
        """
        kept: dict[tuple[Any, ...], Cell] = {}
        for cell in sorted(self.cells, key=lambda cell: (_fitness(cell, rule), cell.created)):
            if not cell.origin.at_best_epoch:
                kept[(*cell.system, cell.origin.seed)] = cell
        chosen = set(kept.values())
        searches = {cell.search for cell in chosen}
        return dataclasses.replace(
            self,
            cells=tuple(cell for cell in self.cells if cell in chosen),
            searches=tuple(search for search in self.searches if search.folder in searches),
        )

    def work_of(self, folder: Path) -> Work | None:
        """The stage in a folder."""
        return next((work for work in self.work if work.folder == folder), None)


def _is_drawn(work: Work) -> bool:
    """Whether it shows that the data are the embedded ones, which alone are drawn here."""
    return work.stage == "images"


def _fitness(cell: Cell, rule: CcrRule) -> tuple[bool, int]:
    """How well a cell answers to a rule; larger is better."""
    kinds = score_kinds_of(cell.algorithm)
    if rule == "published":
        kinds = ["published", "probability", *kinds]
    return cell.ccr_rule in ("", rule), -kinds.index(cell.score_kind) if cell.score_kind in kinds else -len(kinds)


def score_kinds_of(algorithm: str) -> list[str]:
    """Kinds of score of a method, its first one first; none of a plug-in that is no longer installed."""
    from oscbench.postprocessors import POSTPROCESSORS  # loads every method

    try:
        return [*POSTPROCESSORS.info(algorithm).score_kinds]
    except UsageError:
        return []


def ordered(found: Iterable[T], key: Callable[[T], tuple[Any, ...]]) -> list[T]:
    """Sorted by a key of texts; trainings and algorithms of the papers come first, in their order."""
    first = {name: place for place, name in enumerate((*TRAININGS, *ALGORITHMS))}

    def places(item: T) -> list[tuple[int, str]]:
        return [(first.get(part, len(first)), str(part)) for part in key(item)]

    return sorted(found, key=places)


# --- reading -------------------------------------------------------------------------------------------------------


def read_results(runs: Path) -> Results:
    """What is finished below ``runs``; a missing folder, or one without a finished stage, is refused."""
    if not runs.is_dir():
        raise UsageError(f"runs folder {runs} does not exist; give the --runs folder of `oscbench benchmark` or `tune`")
    reader = _Reader(runs)
    if not reader.work and not reader.left_out:
        raise UsageError(f"there is nothing finished below {runs}; `oscbench benchmark` makes results")
    return reader.results()


class _Reader:
    """Reads stage by stage; what fails goes to ``left_out`` with its reason."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.left_out: list[tuple[Path, str]] = []
        found = (self._tried(folder, partial(_read_work, folder)) for folder in _finished(runs))
        self.work = [work for work in found if work is not None]
        self._demo = {work.data for work in self.work if _is_drawn(work)}
        self._by_folder = {work.folder: work for work in self.work}
        self._origins: dict[tuple[Path, str], Origin] = {}  # equal data of two names have equal fingerprints

    def results(self) -> Results:
        """All that could be read."""
        for work in self._of("features"):
            info = self._tried(work.folder, partial(read_info, FeatureInfo, work.folder / "val", "extract again"))
            if info is not None and info.origin.data == work.data:
                self._origins[work.folder.parent, info.origin.train] = info.origin
        cells = self._read("scores", self._cell)
        self._demo |= {cell.origin.data for cell in cells if cell.origin.demo}
        return Results(
            runs=self.runs,
            cells=tuple(ordered(cells, lambda cell: (*_places(cell.origin), cell.algorithm, str(cell.folder)))),
            searches=tuple(
                ordered(self._read("tune", self._search), lambda s: (*_places(s.origin), s.algorithm, str(s.folder)))
            ),
            networks=tuple(ordered(self._networks(), lambda n: (*_places(n.origin), n.stage, str(n.folder)))),
            work=tuple(self.work),
            left_out=tuple(sorted(self.left_out)),
        )

    def _of(self, stage: str) -> list[Work]:
        return [work for work in self.work if work.stage == stage]

    def _read(self, stage: str, read: Callable[[Work], T]) -> list[T]:
        tried = (self._tried(work.folder, partial(read, work)) for work in self._of(stage))
        return [found for found in tried if found is not None]

    def _tried(self, folder: Path, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (OscbenchError, OSError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
            self.left_out.append((folder, " ".join(reason.split())))
            return None

    def _cell(self, work: Work) -> Cell:
        search = self._folder_of(work, "tune")
        splits = {split: ScoreSet.load(work.folder / split) for split in work.result["scores"]}
        for split, scores in splits.items():
            if scores.info is None:
                raise UsageError(f"{work.folder / split} has no {SET}; make the scores again")
            if scores.content_fingerprint() != work.result["scores"][split]:
                raise OscbenchError(f"the scores in {work.folder / split} are not those that were written; remove "
                                    f"{work.folder} and make it again")  # fmt: skip
        info = next(iter(splits.values())).info
        assert info is not None, "looked at above"
        return Cell(
            origin=info.origin,
            algorithm=info.algorithm,
            params=info.params,
            score_kind=info.score_kind,
            ccr_rule=str(self._by_folder[search].config["ccr_rule"]) if search is not None else "",
            folder=work.folder,
            search=search,
            seconds=work.seconds,
            cpus=work.cpus,
            created=work.created,
            versions=work.versions,
        )

    def _folder_of(self, work: Work, role: str) -> Path | None:
        """The folder of an input, where it is there and readable."""
        if role not in work.inputs:
            return None
        folder = work.folder.parent / f"{role}-{work.inputs[role][:8]}"
        return folder if folder in self._by_folder else None

    def _search(self, work: Work) -> Search:
        trials = read_trials(work.folder / "trials.csv")
        if not len(trials):
            raise OscbenchError(f"{work.folder / 'trials.csv'} holds no trial; run the search again")
        first = trials.iloc[0]
        origin = Origin(
            **{name: str(first[name]) for name in ("training", "network", "recipe", "train")},
            data=work.data,
            protocol=work.protocol,
            seed=int(first["seed"]),
            demo=work.data in self._demo,
        )
        return Search(
            origin=origin,
            algorithm=str(work.config["algorithm"]),
            folder=work.folder,
            trials=trials,
            config=work.config,
            seconds=work.seconds,
            cpus=work.cpus,
            created=work.created,
        )

    def _networks(self) -> Iterator[Network]:
        for stage in _NETWORKS:
            yield from self._read(stage, self._network)

    def _network(self, work: Work) -> Network:
        epochs = work.folder / "epochs.csv"
        return Network(
            origin=self._origins.get((work.folder.parent, work.fingerprint)) or self._trained(work),
            folder=work.folder,
            stage=work.stage,
            epochs=pd.read_csv(epochs) if epochs.exists() else pd.DataFrame(),
            config=work.config,
            seconds=work.seconds,
            cpus=work.cpus,
            gpus=work.gpus,
            created=work.created,
        )

    def _trained(self, work: Work) -> Origin:
        """Of a network whose features are not there: as its own record tells."""
        config = work.config.get("training", work.config)
        recipe = recipe_name(from_mapping(Recipe, config["recipe"], f"{work.folder}, recipe"))
        return Origin(
            data=work.data,
            protocol=work.protocol,
            training=str(config["loss"]),
            seed=int(config["seed"]),
            network=str(config["network"]),
            recipe=recipe if work.stage == "train" else f"{recipe}; fine-tuned",
            train=work.fingerprint,
            demo=work.data in self._demo,
        )


def _finished(runs: Path) -> Sequence[Path]:
    """The folders of all finished stages, wherever they lie below the runs folder as ours do."""
    folders = (path for path in sorted(runs.glob("*/*/*-*")) if path.parent.name != ASIDE and not path.is_symlink())
    return [path for path in folders if _STAGE.fullmatch(path.name) and is_complete(path)]


def _read_work(folder: Path) -> Work:
    name = _STAGE.fullmatch(folder.name)
    assert name is not None, "only folders of such names are read"
    meta: Meta[dict[str, Any], dict[str, Any]] = Meta.read(folder, name["name"], dict, dict)
    cpus, gpus = _taken(meta)
    return Work(
        data=folder.parent.parent.name,
        protocol=folder.parent.name,
        stage=meta.stage,
        folder=folder,
        fingerprint=meta.fingerprint,
        inputs={role: given.fingerprint for role, given in meta.inputs.items()},
        config=meta.config,
        result=meta.result,
        seconds=meta.seconds,
        cpus=cpus,
        gpus=gpus,
        created=meta.created,
        versions=meta.versions,
    )


def _taken(meta: Meta[dict[str, Any], dict[str, Any]]) -> tuple[int, float]:
    """CPUs and GPUs: a training says what its workers had, of others the machine's CPUs are known."""
    share: Mapping[str, Any] | None = meta.result.get("share")
    if share is None:
        return meta.cpus, 0.0
    workers = int(meta.config.get("training", meta.config)["workers"])
    return int(share["cpus"]) * workers, float(share["gpus"]) * workers


def _places(origin: Origin) -> tuple[str, ...]:
    seed = "" if origin.seed is None else f"{origin.seed:09d}"
    return (origin.data, origin.protocol, origin.training, origin.network, origin.recipe, seed)
