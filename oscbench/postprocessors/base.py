"""What a post-processor is, and the registry through which everything else finds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from oscbench.errors import OscbenchError, UsageError
from oscbench.features import FeatureSet, Inputs
from oscbench.labels import FloatArray, ProgressFn, check_finite
from oscbench.metrics import Predictions, predict
from oscbench.notes import Note
from oscbench.registry import About as About
from oscbench.registry import Entry, NoParams, Registry, nearest

ScoreKind = Literal["log", "probability", "logit", "native", "published"]
"""``log``: a logarithm, never saturating; ``probability``: in float64, saturating; ``logit``: the network's own output;
``native``: the method's own unbounded scale; ``published``: exactly as the code behind the published tables computes
it, in single precision where that does, for comparison cell by cell."""

Need = Literal["logits", "pooled", "head"]
"""``logits``: refused without; ``pooled``: reads the penultimate layer, so pooled vectors travel along where they were
kept; ``head``: asks the training rows for their head. The embedding is always there."""

Cost = Literal["logits", "features", "classes", "pairs", "training"]
"""What scoring one query costs: ``logits``: O(K); ``features``: at most O(PK), as the network's last layer;
``classes``: O(P²), a change of basis; ``pairs``: O(NP), a comparison with every training row; ``training``: each
setting is a network of its own."""

NEVER_WINS: Final = {"probability": -1.0, "published": -1.0, "log": float(np.finfo(np.float64).min)}
"""Score of a class without a correct training row: finite, and below any other even where probabilities are 0."""
DEMO_RECIPE: Final = "demo"
"""Recipe that a method keeps for the embedded data, where it trains: small networks want fewer epochs."""

T = TypeVar("T")


class PostProcessor(Protocol):
    """Turns network outputs into decisions: fitted on training rows, blind to the labels of what it scores.

    The constructor takes the algorithm's parameter record and the score kind, stores them, computes nothing. A method
    registered with ``per_class`` also has ``score(inputs)``, (N, K) float64, whose argmax and max ``predict`` gives.

    Attributes:
        score_kind: The scale of its scores.
        notes: What ``fit`` had to bend, one note each.
    """

    score_kind: ScoreKind
    notes: tuple[Note, ...] = ()

    def fit(self, train: FeatureSet) -> Self:
        """Learns from the training rows and returns itself."""
        ...

    def predict(self, inputs: Inputs) -> Predictions:
        """Predicted class (N,) int32, and its score (N,) float64 for the threshold: higher is more known."""
        ...


class GridAnswer(NamedTuple):
    """Predicted class and its score for every query and setting, both (Q, S), and what had to be bent."""

    label: NDArray[np.int32]
    score: NDArray[np.float64]
    notes: tuple[Note, ...] = ()


class OnePass(PostProcessor, Protocol):
    """A post-processor whose settings share most of their work and can be evaluated in one pass."""

    bounds_memory: ClassVar[bool] = False
    """Whether what is shared can be bounded (``--memory``)."""

    @classmethod
    def best_of_settings(
        cls,
        train: FeatureSet,
        queries: Inputs,
        settings: Sequence[Any],
        *,
        score_kind: ScoreKind,
        source: Any = None,
        progress: ProgressFn | None = None,
    ) -> GridAnswer:
        """What ``fit`` and ``predict`` would say of each setting.

        Args:
            train: Rows to fit on.
            queries: Rows to score.
            settings: Hyperparameters.
            score_kind: The scale of the scores.
            source: What ``open_source`` gave for these rows; default: this process, from the beginning.
            progress: Called as ``progress(done, total)``.
        """
        ...

    @classmethod
    def open_source(
        cls,
        train: FeatureSet,
        settings: Sequence[Any],
        make_source: Callable[..., Any] | None = None,
        progress: ProgressFn | None = None,
    ) -> Any:
        """What many calls of ``best_of_settings`` with settings like these can share; ``None`` for nothing.

        Args:
            train: Rows to fit on.
            settings: Between these all settings lie.
            make_source: Who computes, for methods that know of sources; default: this process.
            progress: Called as ``progress(done, total)``.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Method(Entry[Callable[..., PostProcessor]]):
    """A registered post-processor with what others must know before they make one.

    Attributes:
        needs: Arrays besides the embedding.
        score_kinds: Kinds of score it gives, the default first.
        per_class: Whether it has ``score``, a number per class.
        one_pass: Whether it is a ``OnePass``.
        fine_tunes: Whether each of its settings is a network of its own, whose features it takes.
        recipes: Named changes of its parameters' defaults.
        cost: What scoring a query costs.
    """

    needs: frozenset[Need]
    score_kinds: tuple[ScoreKind, ...]
    per_class: bool
    one_pass: bool
    fine_tunes: bool
    recipes: Mapping[str, Mapping[str, Any]]
    cost: Cost

    @property
    def shares_work(self) -> bool:
        """Whether ``open_source`` keeps anything between calls."""
        if not self.one_pass:
            return False
        kept: Any = self.grid.open_source
        usual: Any = OnePass.open_source
        return kept.__func__ is not usual.__func__

    @property
    def bounds_memory(self) -> bool:
        """Whether what its settings share can be bounded (``--memory``)."""
        return self.one_pass and self.grid.bounds_memory

    def __post_init__(self) -> None:
        claimed = ["fit", "predict", *(["score"] if self.per_class else [])]
        claimed += ["best_of_settings", "open_source"] if self.one_pass else []
        missing = [name for name in claimed if _is_missing(self.value, name)]
        if missing:
            raise TypeError(f"{self.value!r} is registered as {self.name!r} without {', '.join(missing)}")
        for wrong in (set(self.needs) - set(get_args(Need)), set(self.score_kinds) - set(get_args(ScoreKind))):
            if wrong:
                raise TypeError(
                    f"{self.name!r} is registered with {', '.join(sorted(map(str, wrong)))}, which is unknown"
                )
        if not self.score_kinds:
            raise TypeError(f"{self.name!r} is registered without a score kind")

    @property
    def grid(self) -> type[OnePass]:
        """The class of a method that is ``one_pass``."""
        return cast(type[OnePass], self.value)

    def recipe(self, name: str | None, *, demo: bool) -> Mapping[str, Any]:
        """What a named recipe changes; without a name nothing, but on embedded data what the recipe ``demo`` does."""
        return self.recipes.get(DEMO_RECIPE, {}) if name is None and demo else self.recipes[name] if name else {}

    def require(self, inputs: Inputs) -> None:
        """Refuses inputs that lack what the method needs; a head is asked for, and perhaps recovered, by ``fit``."""
        if "logits" in self.needs and inputs.logits is None:
            instead = ", ".join(methods_without("logits", "head"))
            raise UsageError(
                f"{self.label} needs logits, and these features have none; add logits.npy, or use one of {instead}"
            )


def _is_missing(value: Any, name: str) -> bool:
    """Whether a class lacks a method, or only has what the protocols say about it."""
    found = inspect.getattr_static(value, name, None)
    said = (vars(PostProcessor).get(name), vars(OnePass).get(name))
    return found is None or (found in said and name != "open_source")


class MethodRegistry(Registry[Callable[..., PostProcessor]]):
    """The post-processors, each with what it needs and gives."""

    def register(  # type: ignore[override]
        self,
        name: str,
        *,
        label: str | None = None,
        params: type[Any] = NoParams,
        paper: str = "",
        needs: Iterable[Need] = (),
        score_kinds: tuple[ScoreKind, ...] = ("log", "probability"),
        per_class: bool = True,
        one_pass: bool = False,
        fine_tunes: bool = False,
        recipes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        cost: Cost = "features",
        about: About | None = None,
    ) -> Callable[[type[T]], type[T]]:
        """Decorator that registers a class under ``name``; one without the methods it claims is refused.

        Args:
            name: As the user types it.
            label: As tables show it.
            params: Its parameter record.
            paper: Where it is described.
            needs: Arrays besides the embedding.
            score_kinds: Kinds of score it gives, the default first.
            per_class: Whether it has ``score``.
            one_pass: Whether it has ``best_of_settings`` and ``open_source``.
            fine_tunes: Whether each of its settings is a network of its own.
            recipes: Named changes of its parameters' defaults.
            cost: What scoring a query costs.
            about: Idea, formula, when it is good and when it is not.
        """

        def add(value: type[T]) -> type[T]:
            self.add(
                Method(
                    name=name,
                    value=cast(Callable[..., PostProcessor], value),
                    label=label or name,
                    params=params,
                    paper=paper,
                    needs=frozenset(needs),
                    score_kinds=score_kinds,
                    per_class=per_class,
                    one_pass=one_pass,
                    fine_tunes=fine_tunes,
                    recipes=recipes,
                    cost=cost,
                    about=about,
                )
            )
            return value

        return add

    def info(self, name: str) -> Method:
        """The entry called ``name``."""
        return cast(Method, super().info(name))


POSTPROCESSORS: Final = MethodRegistry("postprocessors", "algorithm")


def methods_without(*needs: Need) -> list[str]:
    """Names of the methods that work on features that lack all of this."""
    methods = map(POSTPROCESSORS.info, POSTPROCESSORS.names())
    return [method.name for method in methods if not method.needs & set(needs) and not method.fine_tunes]


def usable_score_kind(algorithm: str, wanted: ScoreKind) -> ScoreKind:
    """The kind in which ``algorithm`` answers a request for ``wanted``.

    A method with a single kind answers in that one, whatever is asked; tables name the kind that was used.
    """
    kinds = POSTPROCESSORS.info(algorithm).score_kinds
    return kinds[0] if len(kinds) == 1 else require_score_kind(algorithm, wanted)


def require_score_kind(algorithm: str, wanted: ScoreKind | None) -> ScoreKind:
    """``wanted``, by default the method's first kind, or a clear refusal when it is none of the method's."""
    method = POSTPROCESSORS.info(algorithm)
    if wanted is not None and wanted not in method.score_kinds:
        raise UsageError(f"{method.label} has no score kind {wanted!r}; use {' or '.join(method.score_kinds)}")
    return wanted or method.score_kinds[0]


def best_class(scores: NDArray[np.float64]) -> Predictions:
    """The class with the highest score, the lowest among equals, and that score, where ``score`` decides both."""
    label, score = predict(scores)
    return Predictions(label.astype(np.int32), score)


def require_fitted(state: T | None, who: str) -> T:
    """What ``fit`` left behind, or a clear refusal before ``fit``."""
    if state is None:
        raise OscbenchError(f"{who} is not fitted yet; call fit(train) before predict(inputs)")
    return state


def require_width(array: FloatArray, width: int, what: str) -> FloatArray:
    """``array``, or a clear refusal when it is not as wide as in training."""
    if array.shape[1] != width:
        raise UsageError(
            f"{what} to be scored have {array.shape[1]} columns, the training rows had {width}; "
            "both must come from the same network"
        )
    return array


def finite_logits(inputs: Inputs, who: str) -> FloatArray:
    """(N, C) the logits, refused when there are none or a row holds NaN or infinity."""
    logits = inputs.require_logits(who)
    check_finite(logits, "logits")
    return logits


GROUPS: Final[Mapping[str, Callable[[Method], bool]]] = MappingProxyType(
    {"all": lambda method: True, "posthoc": lambda method: not method.fine_tunes}
)
"""Names that stand for several algorithms: every one, and those that do not fine-tune a network."""


def expand_algorithms(names: Iterable[str]) -> dict[str, bool]:
    """The algorithms meant by ``mss``, ``mss,mls``, ``all`` or ``posthoc``, each once, and whether by its own name.

    A group stands for its members in their order of registration; an unknown name is refused with the nearest one.
    """
    found: dict[str, bool] = {}
    for name in (part.strip() for text in names for part in text.split(",")):
        if not name:
            raise UsageError("the list of algorithms has an empty name; write it like evm, mss,mls, posthoc or all")
        if name in GROUPS:
            methods = (POSTPROCESSORS.info(member) for member in POSTPROCESSORS.names())
            found = {method.name: False for method in methods if GROUPS[name](method)} | found
        elif name in POSTPROCESSORS.names():
            found[name] = True
        else:
            known = [*POSTPROCESSORS.names(), *GROUPS]
            raise UsageError(f"unknown algorithm {name!r}{nearest(name, known)} (one of {', '.join(known)})")
    return found
