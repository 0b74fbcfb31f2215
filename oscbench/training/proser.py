"""PROSER's fine-tuning (Zhou et al. 2021): a network with placeholders, and a step that needs its trunk cut in two."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oscbench.data.loading import Batch
from oscbench.errors import UsageError
from oscbench.labels import IntArray
from oscbench.losses import Criterion, TrainingClasses
from oscbench.losses.cross_entropy import SoftmaxCriterion
from oscbench.postprocessors.proser import ProserParams
from oscbench.registry import NoParams
from oscbench.training.checkpoint import Checkpoint, load_weights
from oscbench.training.job import TrainingJob
from oscbench.training.loop import Place, TrainingStep
from oscbench.training.model import Classifier, OpenSetNetwork, build_network

MASKED = -1e9
"""Logit of the class that is out of the question."""

CUTS = {
    "TinyTrunk": "layer3",
    "ResNet": "layer3",
    "RegNet": "trunk_output.block3",
    "DenseNet": "features.denseblock3",
    "ConvNeXt": "features.5",
    "SwinTransformer": "features.5",
}
"""The third of four stages, by the class of the trunk; its output is what is mixed."""

TRUNK_STRIDE = 32
"""Pixels of a side that are one place of the last stage, in all these trunks."""


# --- the network ---------------------------------------------------------------------------------------------------


class Mixture(NamedTuple):
    """Which rows of the first half of a batch are mixed, and how.

    Attributes:
        share: β, the share of the row itself.
        rows: (R,) the rows that are kept.
        partners: (R,) the row that each is mixed with.
    """

    share: float
    rows: Tensor
    partners: Tensor

    def of(self, hidden: Tensor) -> Tensor:
        """(R, ...) the mixed rows of (N, ...)."""
        return self.share * hidden[self.rows] + (1.0 - self.share) * hidden[self.partners]


class Outputs(NamedTuple):
    """(N, K) logits of the known classes, and (N, B) of the dummies."""

    known: Tensor
    dummies: Tensor

    def joined(self, *, every_dummy: bool = False) -> Tensor:
        """(N, K + 1) logits with the strongest dummy last, (N, K + B) with all of them; at least single precision."""
        dummies = self.dummies if every_dummy else self.dummies.amax(dim=1, keepdim=True)
        logits = torch.cat([self.known, dummies], dim=1)
        return logits.float() if logits.dtype == torch.float16 else logits


class _LeftAtTheCutError(Exception):
    """Leaves a forward pass at the cut, with what goes out of it."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class ProserNetwork(Classifier):
    """A trained network with B further outputs on its embedding, whose maximum is the logit of "unknown".

    The parts are called as in published PROSER files. An extra output of a garbage network stays in the weights and is
    left out of the logits, as in those files.

    Args:
        base: The trained network; becomes part of this one.
        n_known: K; further outputs of the base are left out.
        dummies: B.
    """

    def __init__(self, base: OpenSetNetwork, n_known: int, dummies: int) -> None:
        super().__init__()
        self.resnet_base = base
        self.dummy_classifier = nn.Linear(base.embedding_size, dummies)
        self.n_known = n_known
        self._cut = trunk_cut(base.resnet_base)
        self._halves = _Halves()
        _normalise_halfwise(base, self._halves)

    @property
    def n_outputs(self) -> int:
        """K + 1: the known classes and "unknown"."""
        return self.n_known + 1

    def forward(self, images: Tensor, mixture: Mixture | None = None) -> tuple[Any, ...]:
        """(N, K + 1) logits, (N, D) embedding and (N, P) pooled vector; with a mixture what a training step needs.

        Then the first half of the images is mixed at the cut and the second half is not: the ``Outputs`` of the mixed
        rows and those of the second half, as the one member of a tuple (see ``SharedTrunk``).
        """
        if mixture is None:
            outputs, embedding, pooled = self._outputs(images)
            return outputs.joined(), embedding, pooled
        half, n_mixed = len(images) // 2, len(mixture.rows)

        def mix(hidden: Tensor) -> Tensor:
            first, clean = torch.split(hidden, [half, len(hidden) - half])
            self._halves.first = n_mixed
            return torch.cat([mixture.of(first), clean])

        self._halves.first = half
        try:
            with _at_the_cut(self.resnet_base.resnet_base, self._cut, mix):
                outputs, _, _ = self._outputs(images)
        finally:
            self._halves.first = 0
        known, dummies = (torch.split(output, [n_mixed, len(images) - half]) for output in outputs)
        return ((Outputs(known[0], dummies[0]), Outputs(known[1], dummies[1])),)

    def _outputs(self, images: Tensor) -> tuple[Outputs, Tensor, Tensor]:
        embedding, pooled = self.resnet_base.resnet_base(images)
        known = self.resnet_base.logits(embedding)[:, : self.n_known]
        return Outputs(known, self.dummy_classifier(embedding)), embedding, pooled


@dataclass
class _Halves:
    """How many rows of a pass belong to its first half; 0: it has only one."""

    first: int = 0


class _HalfwiseNorm(nn.BatchNorm2d):
    """Batch normalisation that takes its statistics of each half of a batch by itself, the first one first.

    As if the halves were passed one after the other; but all other layers see the whole batch, which on small networks
    is faster than two passes.
    """

    def __init__(self, norm: nn.BatchNorm2d, halves: _Halves) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.load_state_dict(norm.state_dict())
        self._halves = halves

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """See ``nn.BatchNorm2d``."""
        first = self._halves.first
        if not first or not self.training:
            return super().forward(input)
        mixed, clean = torch.split(input, [first, len(input) - first])
        return torch.cat([super().forward(mixed), super().forward(clean)])


def _normalise_halfwise(part: nn.Module, halves: _Halves) -> None:
    """Puts a ``_HalfwiseNorm`` in the place of every batch normalisation."""
    for name, child in part.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(part, name, _HalfwiseNorm(child, halves))
        else:
            _normalise_halfwise(child, halves)


@contextlib.contextmanager
def _at_the_cut(trunk: nn.Module, cut: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Forward passes within go on from the cut with what ``change`` makes of its output."""
    hook = trunk.get_submodule(cut).register_forward_hook(lambda module, inputs, hidden: change(hidden))
    try:
        yield
    finally:
        hook.remove()


def trunk_cut(trunk: nn.Module) -> str:
    """Name of the part whose output is mixed; a trunk without four stages is refused."""
    if type(trunk).__name__ not in CUTS:
        raise UsageError(
            f"PROSER mixes samples after the third of four stages, and {type(trunk).__name__} has no such stages; "
            "take a network of the families ResNet, RegNet, DenseNet, ConvNeXt or Swin, or tiny"
        )
    return CUTS[type(trunk).__name__]


class SharedTrunk(Classifier):
    """Fine-tunings side by side that differ in their number of dummies, behind one frozen trunk up to the cut.

    Each has its own fourth stage, embedding, logits and dummies: what one learns does not touch another.

    Args:
        base: The trained network.
        n_known: K.
        dummies: B of each.
        seed: Decides the beginning of the dummies, as if each were alone.
    """

    def __init__(self, base: OpenSetNetwork, n_known: int, dummies: Sequence[int], seed: int) -> None:
        super().__init__()
        self._cut = trunk_cut(base.resnet_base)
        self.members = nn.ModuleDict()
        for size in dummies:
            member = copy.deepcopy(base)
            member.resnet_base = _after_the_cut(base.resnet_base, self._cut)
            torch.manual_seed(seed)
            self.members[str(size)] = ProserNetwork(member, n_known, size)
        self.trunk = base.resnet_base.requires_grad_(False)

    @property
    def n_outputs(self) -> int:
        """K + 1."""
        return self._first.n_outputs

    @property
    def _first(self) -> ProserNetwork:
        return cast(ProserNetwork, next(iter(self.members.values())))

    def train(self, mode: bool = True) -> Self:
        """What is frozen keeps its batch statistics too."""
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, images: Tensor, mixture: Mixture | None = None) -> tuple[Any, ...]:
        """As ``ProserNetwork``: without a mixture of the first member, with one of each member in turn."""
        hidden = self._hidden(images)
        if mixture is None:
            outputs: tuple[Any, ...] = self._first(hidden)
            return outputs
        return tuple(pair for member in self.members.values() for pair in member(hidden, mixture))

    @torch.no_grad()
    def _hidden(self, images: Tensor) -> Tensor:
        def leave(hidden: Tensor) -> Tensor:
            raise _LeftAtTheCutError(hidden)

        try:
            with _at_the_cut(self.trunk, self._cut, leave):
                self.trunk(images)
        except _LeftAtTheCutError as left:
            return left.hidden
        raise AssertionError(f"{self._cut} is no part of the trunk's forward pass")

    @staticmethod
    def member_weights(weights: Mapping[str, Tensor], dummies: int) -> dict[str, Tensor]:
        """The weights of one member as those of a whole ``ProserNetwork``."""
        frozen = {f"resnet_base.resnet_base.{name}": w for name, w in _below(weights, "trunk.").items()}
        return frozen | _below(weights, f"members.{dummies}.")


def _below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _after_the_cut(trunk: nn.Module, cut: str) -> nn.Module:
    """A copy of the trunk that takes the output of the cut: all that comes before is left out.

    The trunks in ``CUTS`` call their parts one after the other, in the order in which they hold them; what ``tiny``
    does in between, a ReLU, changes nothing about the output of a ReLU.
    """
    after = copy.deepcopy(trunk)
    parent, parts = after, cut.split(".")
    for depth, part in enumerate(parts):
        names = [name for name, _ in parent.named_children()]
        passed = names[: names.index(part) + (depth == len(parts) - 1)]
        for name in passed:
            setattr(parent, name, nn.Identity())
        parent = getattr(parent, part)
    return after


# --- the step ------------------------------------------------------------------------------------------------------


def draw_mixture(labels: IntArray, params: ProserParams, seed: tuple[int, ...]) -> Mixture:
    """One share and one permutation for the rows with these labels; pairs of one class are dropped as published.

    Along a cycle of a permutation the class changes at least twice or never: no batch is left with a single row.

    Args:
        labels: Classes of the first half of a batch.
        params: ``mix_alpha``, and whether pairs of one class are dropped.
        seed: What the draw depends on.
    """
    random = np.random.default_rng(seed)
    share, partners = random.beta(params.mix_alpha, params.mix_alpha), random.permutation(len(labels))
    different = labels != labels[partners]
    rows = np.flatnonzero(different | (params.fine_tuning == "authors"))
    return Mixture(float(share), torch.from_numpy(rows), torch.from_numpy(partners[rows]))


@dataclass(frozen=True)
class ProserStep:
    """λ0·j1 + λ1·j2 + λ2·j3: mixed samples are unknown, clean ones their class, and unknown once that is masked.

    The losses of several fine-tunings behind one trunk add up, and their gradients do not meet.

    Attributes:
        params: The setting.
        seed: Of the training; with the epoch and the batch's first sample it decides what is mixed, so that a batch is
            mixed alike whichever worker has it and however often the training was interrupted.
        members: How many fine-tunings the network holds.
    """

    params: ProserParams
    seed: int
    members: int = 1

    def weights(self, batch: Batch, epoch: int) -> Tensor:
        """Rows of each term, for each member alike."""
        n_clean = len(batch.labels) - len(batch.labels) // 2
        rows = [len(self._mixture(batch, epoch).rows), n_clean, n_clean]
        return torch.tensor(rows, dtype=torch.float32).repeat(self.members)

    def sums(self, network: nn.Module, batch: Batch, place: Place, epoch: int) -> Tensor:
        """The three terms of each member, each with its λ."""
        share, rows, partners = self._mixture(batch, epoch)
        mixture = Mixture(share, place.labels(rows), place.labels(partners))
        labels = place.labels(batch.labels[len(batch.labels) // 2 :])
        with place.autocast():
            members = network(place.images(batch.images), mixture)
        params, terms = self.params, []
        for mixed, clean in members:
            j1, j2, j3 = loss_terms(mixed, clean, labels, every_dummy=params.fine_tuning == "authors")
            terms += [params.lambda0 * j1, params.lambda1 * j2, params.lambda2 * j3]
        return torch.stack(terms)

    def _mixture(self, batch: Batch, epoch: int) -> Mixture:
        labels = batch.labels[: len(batch.labels) // 2].numpy()
        return draw_mixture(labels, self.params, (self.seed, epoch, int(batch.ids[0])))


def loss_terms(mixed: Outputs, clean: Outputs, labels: Tensor, *, every_dummy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """j1, j2 and j3 as sums over their rows; j1 is 0 without a mixed row.

    Args:
        mixed: Outputs of the mixed rows.
        clean: Outputs of the clean rows.
        labels: Classes of the clean rows.
        every_dummy: Whether every dummy is an output of its own in j1 and j2; the first is then that of mixed rows.
    """
    unknown = clean.known.shape[1]
    targets = labels.new_full((len(mixed.known),), unknown)
    masked = clean.joined().scatter(1, labels[:, None], MASKED)
    j1 = cross_entropy(mixed.joined(every_dummy=every_dummy), targets, reduction="sum")
    j2 = cross_entropy(clean.joined(every_dummy=every_dummy), labels, reduction="sum")
    j3 = cross_entropy(masked, torch.full_like(labels, unknown), reduction="sum")
    return j1, j2, j3


# --- the task ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProserTask:
    """Fine-tunes the network in the job's ``init`` on its known samples."""

    params: ProserParams

    @property
    def fresh_optimizer(self) -> bool:
        """See ``Task.fresh_optimizer``."""
        return self.params.fine_tuning == "authors"

    def fewest_rows(self, job: TrainingJob) -> int:
        """One, as published, where the last stage of a trunk has several places; else two in each half of a batch."""
        return 1 if job.config.crop > TRUNK_STRIDE else 4

    def uses_negatives(self, job: TrainingJob) -> bool:
        """Never: mixed samples stand for what is unknown."""
        return False

    def network(self, job: TrainingJob) -> Classifier:
        """The trained network with dummies of torch's usual initialisation, which the seed decides."""
        base = _base(job)
        torch.manual_seed(job.config.seed)
        return ProserNetwork(base, job.n_known, self.params.dummies)

    def step(self, job: TrainingJob) -> TrainingStep:
        """See ``ProserStep``."""
        return ProserStep(self.params, job.config.seed)

    def criterion(self, job: TrainingJob) -> Criterion:
        """Cross entropy of known samples, over their classes and "unknown"."""
        return SoftmaxCriterion(TrainingClasses(n_known=job.n_known, counts=(), n_negative=0), NoParams())


@dataclass(frozen=True)
class SharedTask(ProserTask):
    """Several fine-tunings behind one frozen trunk.

    Attributes:
        dummies: B of each.
    """

    dummies: tuple[int, ...]

    def network(self, job: TrainingJob) -> Classifier:
        """See ``SharedTrunk``."""
        return SharedTrunk(_base(job), job.n_known, self.dummies, job.config.seed)

    def step(self, job: TrainingJob) -> TrainingStep:
        """See ``ProserStep``."""
        return ProserStep(self.params, job.config.seed, len(self.dummies))


def _base(job: TrainingJob) -> OpenSetNetwork:
    """The trained network that the fine-tuning starts from."""
    assert job.init is not None, "fine-tuning starts from a trained network"
    found, config = Checkpoint.load(job.init), job.config
    base = build_network(config.network, found.n_outputs, found.embedding_size)
    load_weights(base, found, where=str(job.init), wanted=f"{config.network} for {job.what}")
    return base
