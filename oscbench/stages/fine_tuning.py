"""Fine-tunings: a trained network goes on with placeholders, one network per setting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from oscbench.errors import UsageError
from oscbench.metrics import CcrRule
from oscbench.origin import Origin
from oscbench.postprocessors import ScoreKind
from oscbench.postprocessors.proser import Proser, ProserParams
from oscbench.records import from_mapping, sha256_file
from oscbench.resources import Resources, WorkerAsk, WorkerShare
from oscbench.stages.features import AnyFeatures, Features
from oscbench.stages.network import Network, TrainedHere, TrainingResult
from oscbench.stages.runner import OpenRunner, Runner, Session
from oscbench.stages.stage import ensure
from oscbench.training.checkpoint import LAST, Checkpoint
from oscbench.training.epoch_metrics import EpochRow
from oscbench.training.recipes import TrainConfig, fine_tuning_recipe
from oscbench.tuning.evaluator import (
    EvaluationOptions,
    Outcome,
    SharedFeatures,
    TrialContext,
    check_validation,
)
from oscbench.tuning.search import Search
from oscbench.tuning.space import Setting
from oscbench.tuning.trials import RATES

if TYPE_CHECKING:
    from oscbench.training.proser import ProserTask, SharedTask

WITH_STAGES: Final = frozenset({"tiny", "resnet50"})
"""Networks that need not be built to know that PROSER can cut them in two; of others ``trunk_cut`` tells."""


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig:
    """What decides a fine-tuning, besides the network it starts from.

    Attributes:
        training: How it is run: images, optimisation, workers, seed.
        setting: What is learned.
    """

    training: TrainConfig
    setting: ProserParams

    @property
    def loss(self) -> str:
        """Loss of the network it starts from."""
        return self.training.loss

    @property
    def seed(self) -> int:
        """That of the network it starts from."""
        return self.training.seed


def _training(features: Features, setting: ProserParams, workers: int) -> TrainConfig:
    base = features.network
    return TrainConfig(
        loss=base.config.loss,
        network=base.view.network,
        crop=base.view.crop,
        stored_side=base.view.stored_side,
        recipe=fine_tuning_recipe(setting, normalise=base.view.normalise),
        workers=workers,
        loader=features.config.loader,
        seed=base.config.seed,
    )


F = TypeVar("F", bound=FineTuningConfig)


@dataclass(frozen=True, kw_only=True, eq=False)
class _OnKnownSamples(TrainedHere[F]):
    """Goes on with the weights of a trained network, on known samples alone.

    Attributes:
        base: The network it starts from; the same stage as among the inputs.
    """

    base: Network[Any, Any]

    @property
    def training(self) -> TrainConfig:
        """See ``TrainedHere.training``."""
        return self.config.training

    @property
    def start(self) -> Path:
        """See ``TrainedHere.start``."""
        return self.base.weights

    def _n_train(self) -> int:
        return self.samples.expected_counts()["train"].known


@dataclass(frozen=True, kw_only=True)
class SharedConfig(FineTuningConfig):
    """Several fine-tunings with one setting but for the number of dummies.

    Attributes:
        dummies: Of each; the setting says 1, whoever asks.
    """

    dummies: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedFineTuning(_OnKnownSamples[SharedConfig]):
    """Fine-tunings side by side on one pass through a frozen trunk; its figures are those of the first."""

    name = "finetune-shared"
    config_type = SharedConfig

    @property
    def task(self) -> SharedTask:
        """See ``TrainedHere.task``."""
        from oscbench.training.proser import SharedTask

        return SharedTask(self.config.setting, self.config.dummies)

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        return f"{self.base.recipe}; {Proser.name}"

    @property
    def alias(self) -> str:
        """See ``Stage.alias``."""
        return f"{self.base.alias_root}/{Proser.name}/shared"

    def describe(self) -> str:
        """See ``Stage.describe``."""
        return f"{super().describe()}, with {', '.join(map(str, self.config.dummies))} dummies side by side"


@dataclass(frozen=True, kw_only=True, eq=False)
class FineTuning(_OnKnownSamples[FineTuningConfig]):
    """A network with placeholders."""

    name = "finetune"
    config_type = FineTuningConfig

    @classmethod
    def of(
        cls,
        features: Features,
        setting: ProserParams,
        *,
        workers: int = 1,
        together: tuple[int, ...] = (),
        **how: Any,
    ) -> FineTuning:
        """The fine-tuning of the network behind some features, from the pixels that those were made of.

        Args:
            features: Of the network it starts from.
            setting: What is learned.
            workers: Processes that train together.
            together: Numbers of dummies that are trained side by side, where the trunk is frozen; default: this one.
            how: ``ask`` and ``on_epoch``, see ``TrainedHere``.
        """
        base, training, inputs = features.network, _training(features, setting, workers), dict(features.inputs)
        common = {"room": base.room, "samples": base.samples, "demo": base.demo, "base": base, **how}
        if setting.trunk == "frozen":
            alike, dummies = dataclasses.replace(setting, dummies=1), together or (setting.dummies,)
            shared = SharedConfig(training=training, setting=alike, dummies=dummies)
            inputs["shared"] = SharedFineTuning(config=shared, inputs=features.inputs, **common)
        return cls(config=FineTuningConfig(training=training, setting=setting), inputs=inputs, **common)

    @property
    def task(self) -> ProserTask:
        """See ``TrainedHere.task``."""
        from oscbench.training.proser import ProserTask

        return ProserTask(self.config.setting)

    @property
    def recipe(self) -> str:
        """See ``Network.recipe``."""
        changed = {
            field.name: getattr(self.config.setting, field.name)
            for field in dataclasses.fields(ProserParams)
            if field.name == "dummies" or getattr(self.config.setting, field.name) != field.default
        }
        return f"{self.base.recipe}; {Proser.name} " + ", ".join(f"{name}={value}" for name, value in changed.items())

    @property
    def origin(self) -> Origin:
        """A network of its own."""
        return dataclasses.replace(self.base.origin, recipe=self.recipe, train=self.fingerprint)

    @property
    def dummies(self) -> int:
        """See ``Network.dummies``."""
        return self.config.setting.dummies

    @property
    def alias_root(self) -> str:
        """See ``Network.alias_root``."""
        return f"{self.base.alias_root}/{Proser.name}"

    def admit(self, session: Session) -> None:
        """What another stage has trained needs no workers."""
        if "shared" not in self.inputs:
            super().admit(session)

    def make(self, work: Path, session: Session) -> TrainingResult:
        """Trains, or takes its part of what was trained side by side."""
        shared = self.inputs.get("shared")
        if not isinstance(shared, SharedFineTuning):
            return super().make(work, session)
        from oscbench.training.proser import SharedTrunk

        found, result = Checkpoint.load(shared.weights), shared.result
        weights = SharedTrunk.member_weights(found.model, self.dummies)
        dataclasses.replace(found, model=weights, optimizer={}, scaler={}, fingerprint=self.fingerprint).save(
            work / LAST
        )
        return TrainingResult(
            epochs=result.epochs, last={}, best={}, weights=sha256_file(work / LAST), share=result.share
        )

    def describe(self) -> str:
        """See ``Stage.describe``."""
        dummies = self.config.setting.dummies
        return f"{super().describe()}, {dummies} dumm{'ies' if dummies > 1 else 'y'}"

    def features(self, like: Features) -> Features:
        """The features of the fine-tuned network, extracted as those of its base."""
        return dataclasses.replace(like, inputs={**like.inputs, "train": self}, network=self, ask=self.ask)


def fine_tuned(
    features: AnyFeatures,
    params: Mapping[str, Any],
    workers: int,
    together: tuple[int, ...] = (),
    ask: WorkerAsk = WorkerAsk(),  # noqa: B008 - frozen
) -> Features:
    """The features of the network behind ``features`` after its fine-tuning with a setting (see ``FineTuning.of``)."""
    assert isinstance(features, Features), "a user's own features have no network"
    setting = from_mapping(ProserParams, params, f"parameters of {Proser.name}")
    return FineTuning.of(features, setting, workers=workers, together=together, ask=ask).features(like=features)


# --- each setting a trial ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FineTuningTrials:
    """What a search asks: a setting in, a network fine-tuned and scored, its CCR at the four rates out.

    Every fine-tuning is a stage of its own, so that one setting is trained once, whichever search asks for it.

    Attributes:
        features: Of the network that is fine-tuned.
        workers: Processes that train a trial together.
        share: What each of them gets.
        at_once: Trials at the same time.
        rule: How CCR is read at a rate.
        score_kind: Score the curve is made of.
        open_runner: Who trains, from within a trial's process.
        longest: Epochs of the longest trial, where poor ones may be stopped early.
        together: Numbers of dummies that the first trial trains side by side for the others; empty: each its own.
    """

    features: Features
    workers: int
    share: WorkerShare
    at_once: int
    rule: CcrRule
    score_kind: ScoreKind
    open_runner: OpenRunner
    longest: int | None = None
    together: tuple[int, ...] = ()

    keeps_folders = False

    @classmethod
    def of(
        cls,
        search: Search,
        features: Features,
        *,
        workers: int,
        together: tuple[int, ...],
        trials: int,
        ask: WorkerAsk,
        runner: Runner,
    ) -> FineTuningTrials:
        """The trials of a search.

        Args:
            search: What asks.
            features: Of the network that is fine-tuned.
            workers: Processes that train a trial together.
            together: Numbers of dummies that are trained side by side.
            trials: How many may run at once. Not how many are left: the weights depend on the number of threads, which
                a search that is taken up again must not change.
            ask: What each worker is to get.
            runner: Who executes.
        """
        share, at_once = runner.trial_share(1 if together else trials, workers, ask)
        # Epochs are judged by this rule; by another one, figures on the way would not be those of the table.
        comparable = search.rule == "inclusive" and search.score_kind != "published"
        return cls(
            features=features,
            workers=workers,
            share=share,
            at_once=at_once,
            rule=search.rule,
            score_kind=search.score_kind,
            open_runner=runner.within_trials(workers),
            together=together,
            longest=max(int(setting["epochs"]) for setting in search.expected_settings())
            if comparable and not search.is_exhaustive
            else None,
        )

    @property
    def cpus(self) -> float:
        """A trial with one worker is that worker; one with several leaves every CPU to them and waits."""
        return self.share.cpus if self.workers == 1 else 0.0

    @property
    def gpus(self) -> float:
        """Likewise."""
        return self.share.gpus if self.workers == 1 else 0.0

    def concurrency(self, left: int, have: Resources) -> int:
        """As many as have room for all their workers: a search must not wait for itself, nor for what one shares."""
        return min(left, self.at_once)

    def clean_up(self) -> None:
        """Nothing to end: workers end with their trial."""

    def evaluate(self, setting: Setting, trial: TrialContext) -> Outcome:
        """See ``TrialEvaluator.evaluate``."""
        params = from_mapping(ProserParams, setting, "setting")

        def report(row: EpochRow) -> None:
            if row["epoch"] < params.epochs:  # the last epoch is no figure on the way: its network is the outcome
                trial.report(int(row["epoch"]), epoch_figures(row))

        ask = WorkerAsk(cpus=self.share.cpus, gpus=self.share.gpus)
        network = FineTuning.of(
            self.features, params, workers=self.workers, together=self.together, ask=ask, on_epoch=report
        )
        features = network.features(like=self.features)
        with Session(self.open_runner) as session:
            ensure([features], session, yes=True, in_use=False)
        splits = features.load()
        options = EvaluationOptions(rule=self.rule, score_kind=self.score_kind)
        return SharedFeatures(Proser.name, splits.train, splits.val, options)([setting])[0]


def epoch_figures(row: EpochRow) -> Mapping[str, float]:
    """What of an epoch is shown while its trial runs, and compared with other trials."""
    rates = {name: row[name] for name in RATES if name != "sum"}
    return {"sum": row["ccr_sum"], **rates, "accuracy": row["val_accuracy"], "loss": row["train_loss"]}


def check_base(features: Features) -> None:
    """Refuses a network that cannot be fine-tuned, and samples on which the result could not be judged."""
    base = features.network
    if base.dummies:
        raise UsageError(
            f"{base.folder} has {base.dummies} dummies already, it was fine-tuned by {Proser.name}; give the network "
            f"it was made from, or take it as it is (`oscbench extract --checkpoint`, then `oscbench evaluate`)"
        )
    if base.view.network not in WITH_STAGES:
        from oscbench.training.model import network_without_weights
        from oscbench.training.proser import trunk_cut

        trunk_cut(network_without_weights(base.view.network, base.n_outputs).resnet_base)
    if base.samples.state() == "done":
        check_validation(np.asarray(base.samples.table("val").labels), str(base.samples.folder / "val"))


def fine_tuning_seconds(
    features: Features,
    left: int,
    *,
    workers: int,
    together: tuple[int, ...],
    trials: int,
    have: Resources,
    ask: WorkerAsk,
    epochs: Sequence[Any] = (),
) -> float:
    """About how long the trials that are left take, with the most epochs of a grid, else the usual number of them.

    Arguments as for ``FineTuningTrials.of``.
    """
    gpus = ask.gpus_of(have)
    room = int(have.gpus / gpus) if gpus else have.cpus // (ask.cpus or 1)
    at_once = 1 if together else max(1, min(trials, room // workers))
    share = WorkerShare(cpus=ask.cpus or max(1, have.cpus // (at_once * workers)), gpus=gpus)
    setting = ProserParams(epochs=max(map(int, epochs), default=ProserParams.epochs))
    one = FineTuning.of(features, setting, workers=workers).seconds_with(share)
    return math.ceil(left / (len(together) or at_once)) * one
