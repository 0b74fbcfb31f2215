"""PROSER's step: golden values of the original loop, plain loops, and what a batch may look like."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, multiprocessing, nn

from oscbench.data.loading import Batch
from oscbench.errors import UsageError
from oscbench.metrics import confidence_of_samples
from oscbench.numerics.softmax import single_softmax
from oscbench.postprocessors.proser import ProserParams
from oscbench.training.loop import Place, train_epoch
from oscbench.training.model import OpenSetNetwork, build_network
from oscbench.training.proser import (
    CUTS,
    Mixture,
    Outputs,
    ProserNetwork,
    ProserStep,
    SharedTrunk,
    draw_mixture,
    loss_terms,
    trunk_cut,
)
from oscbench.training.workers import TorchWorkers, Workers

GOLDEN = np.load(Path(__file__).parents[2] / "data" / "proser_golden.npz")
CPU = Place(torch.device("cpu"))
K = 4


class Stub(nn.Module):
    """The network that the golden values were made with."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(8, 10), nn.Tanh())
        self.last = nn.Sequential(nn.Linear(10, 12), nn.ReLU())
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.last(self.first(x)))
        return out


CUTS["Stub"] = "first"

NAMES = {
    "resnet_base.resnet_base.first.1": "first",
    "resnet_base.resnet_base.last.0": "last",
    "resnet_base.resnet_base.fc": "fc",
    "resnet_base.logits": "logits",
    "dummy_classifier": "dummy_classifier",
}


def golden(case: str, key: str) -> Tensor:
    return torch.from_numpy(GOLDEN[f"{case}__{key}"])


def golden_network(case: str, moment: str) -> ProserNetwork:
    width, dummies = len(golden(case, "init__logits.weight")), len(golden(case, "init__dummy_classifier.bias"))
    network = ProserNetwork(OpenSetNetwork(Stub(), width, width), K, dummies).double()
    state = {}
    for name in network.state_dict():
        module, _, part = name.rpartition(".")
        state[name] = golden(case, f"{moment}__{NAMES[module]}.{part}")
    network.load_state_dict(state)
    return network


class GoldenStep(ProserStep):
    """Mixes as the original loop did."""

    case = ""

    def _mixture(self, batch: Batch, epoch: int) -> Mixture:
        number = 3 * epoch + int(batch.ids[0])
        partners, labels = golden(self.case, f"perm{number}"), batch.labels[: len(batch.labels) // 2]
        rows = torch.nonzero(labels != labels[partners])[:, 0]
        return Mixture(float(golden(self.case, "beta")[number]), rows, partners[rows])


@pytest.mark.parametrize("case", ["softmax_B1", "softmax_B5", "garbage_B3"])
def test_the_loop_is_the_original_one(case: str) -> None:
    network = golden_network(case, "init")
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    step = GoldenStep(ProserParams(dummies=1), seed=0)
    object.__setattr__(step, "case", case)
    for epoch in range(2):
        for number in range(3):
            x, y = golden(case, f"batch{number}__x"), golden(case, f"batch{number}__y")
            batch = Batch(x[:, :, None, None], y, torch.full_like(y, number))
            terms = step.sums(network, batch, CPU, epoch) / step.weights(batch, epoch).clamp(min=1)
            j, j1, j2, j3 = golden(case, "losses_j_j1_j2_j3")[3 * epoch + number].tolist()
            assert terms.tolist() == pytest.approx([0.1 * j1, j2, j3], abs=1e-10)
            loss = train_epoch(
                network,
                [[batch]],
                step,
                optimizer,
                place=CPU,
                workers=Workers(),
                scaler=torch.amp.GradScaler("cpu", enabled=False),
                rate_at_step=lambda _: 1e-4,
                epoch=epoch,
            )
            assert loss == pytest.approx(j, abs=1e-6)  # reported in single precision
    expected = golden_network(case, "final").state_dict()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10)
    _same_scores(case, network)


def _same_scores(case: str, network: ProserNetwork) -> None:
    labels = golden(case, "query_y").numpy()
    with torch.no_grad():
        logits, _, _ = network(golden(case, "query_x")[:, :, None, None])
    np.testing.assert_allclose(logits[:, :K].float(), golden(case, "query_logits"), atol=1e-6)
    scores = single_softmax(logits.float().numpy())
    np.testing.assert_allclose(scores[:, :K], golden(case, "query_scores"), atol=1e-6)
    exact = torch.softmax(logits, dim=1).numpy()
    target = np.where(labels >= 0, exact[np.arange(len(labels)), np.clip(labels, 0, None)], 0.0)
    gamma = confidence_of_samples(
        labels, target, exact[:, :K].max(axis=1), n_known=K, extra_output=True, negative_labels=(-1, -2)
    )
    assert [gamma.known, gamma.negative] == pytest.approx(golden(case, "gamma_plus_minus").tolist(), abs=1e-6)


# --- the loss ------------------------------------------------------------------------------------------------------


def plain_terms(mixed: Outputs, clean: Outputs, labels: Tensor, *, every_dummy: bool) -> list[float]:
    """j1, j2 and j3, one row and one output at a time."""

    def negative_log(logits: list[float], target: int) -> float:
        top = max(logits)
        return -(logits[target] - top - np.log(sum(np.exp(value - top) for value in logits)))

    def listed(outputs: Outputs, row: int, every: bool) -> list[float]:
        dummies = outputs.dummies[row].tolist()
        return outputs.known[row].tolist() + (dummies if every else [max(dummies)])

    j1 = 0.0
    for row in range(len(mixed.known)):
        j1 += negative_log(listed(mixed, row, every_dummy), K)
    j2 = j3 = 0.0
    for row, label in enumerate(labels.tolist()):
        j2 += negative_log(listed(clean, row, every_dummy), label)
        rest = listed(clean, row, False)
        rest[label] = -1e9
        j3 += negative_log(rest, K)
    return [j1, j2, j3]


def some_outputs(rows: int, dummies: int, seed: int) -> Outputs:
    random = torch.Generator().manual_seed(seed)
    known = 3 * torch.randn(rows, K, generator=random, dtype=torch.float64)
    return Outputs(known, 3 * torch.randn(rows, dummies, generator=random, dtype=torch.float64))


@pytest.mark.parametrize("every_dummy", [False, True])
@pytest.mark.parametrize("dummies", [1, 3])
@pytest.mark.parametrize("rows", [0, 2, 5])
def test_terms_are_those_of_a_plain_loop(rows: int, dummies: int, every_dummy: bool) -> None:
    mixed, clean, labels = some_outputs(rows, dummies, 1), some_outputs(6, dummies, 2), torch.tensor([0, 1, 2, 3, 0, 0])
    found = [float(term) for term in loss_terms(mixed, clean, labels, every_dummy=every_dummy)]
    assert found == pytest.approx(plain_terms(mixed, clean, labels, every_dummy=every_dummy), abs=1e-12)


def test_a_masked_class_never_wins_however_sure_the_network_is() -> None:
    clean = Outputs(torch.tensor([[1e4, 0.0, 0.0, 0.0]]), torch.tensor([[-50.0, -60.0]]))
    _, _, j3 = loss_terms(some_outputs(0, 2, 0), clean, torch.tensor([0]), every_dummy=False)
    rest = torch.tensor([[0.0, 0.0, 0.0, -50.0]])
    assert float(j3) == pytest.approx(float(nn.functional.cross_entropy(rest, torch.tensor([3]))), abs=1e-4)


@given(
    st.lists(st.integers(0, 4), max_size=20),
    st.integers(0, 10_000),
    st.floats(0.01, 100),
    st.sampled_from(["published", "authors"]),
)
def test_mixed_pairs_never_share_a_class_and_are_never_one_alone(
    labels: list[int], seed: int, alpha: float, kind: str
) -> None:
    classes = np.array(labels, np.int64)
    mixture = draw_mixture(classes, ProserParams(mix_alpha=alpha, fine_tuning=kind), (seed, 0))
    rows, partners = mixture.rows.numpy(), mixture.partners.numpy()
    assert 0 <= mixture.share <= 1
    assert len(set(rows.tolist())) == len(rows)
    if kind == "authors":
        assert len(rows) == len(labels)
    else:
        assert (classes[rows] != classes[partners]).all()
        assert len(rows) != 1  # a batch statistic of one row would be none
    again = draw_mixture(classes, ProserParams(mix_alpha=alpha, fine_tuning=kind), (seed, 0))
    assert again.share == mixture.share
    assert again.rows.tolist() == rows.tolist()


# --- the network ---------------------------------------------------------------------------------------------------


def tiny(dummies: int = 3, loss_outputs: int = K) -> ProserNetwork:
    torch.manual_seed(0)
    return ProserNetwork(build_network("tiny", loss_outputs, 6), K, dummies)


def a_batch(labels: list[int], first: int = 0, side: int = 32) -> Batch:
    random = torch.Generator().manual_seed(first)
    images = torch.rand(len(labels), 3, side, side, generator=random)
    return Batch(images, torch.tensor(labels), torch.arange(first, first + len(labels)))


def test_gradients_reach_dummies_and_the_whole_trunk_from_each_half() -> None:
    network, batch = tiny(), a_batch([0, 1, 2, 3, 0, 1, 2, 3])
    for weights, reached in (((1.0, 0.0, 0.0), "mixed"), ((0.0, 1.0, 0.0), "clean"), ((0.0, 0.0, 1.0), "masked")):
        network.zero_grad()
        names = dict(zip(("lambda0", "lambda1", "lambda2"), weights, strict=True))
        ProserStep(ProserParams(**names), seed=0).sums(network, batch, CPU, 0).sum().backward()
        missing = [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()]
        assert missing == [], reached


@pytest.mark.parametrize(
    ("labels", "first_half", "mixes"),
    [
        ([0, 1, 2, 3, 0, 1, 2, 3], 4, True),
        ([2, 2, 2, 2, 0, 1, 2, 3], 4, False),  # one class only: no pair is left
        ([0, 1, 2], 1, False),  # a row by itself has no partner
        ([3], 0, False),  # one sample: clean alone
    ],
)
def test_running_statistics_are_updated_by_each_half_of_a_batch(
    labels: list[int], first_half: int, mixes: bool
) -> None:
    network, seed = tiny().train(), 0
    batch, step = a_batch(labels, side=64), ProserStep(ProserParams(), seed=seed)
    while mixes != bool(len(step._mixture(batch, 0).rows)):  # a draw may pair every row with itself
        seed += 1
        step = ProserStep(ProserParams(), seed=seed)
    terms = step.sums(network, batch, CPU, 0)
    assert torch.isfinite(terms).all()
    assert bool(terms[0] > 0) == mixes
    assert step.weights(batch, 0).tolist() == [len(step._mixture(batch, 0).rows), *[len(labels) - first_half] * 2]
    trunk = network.resnet_base.resnet_base
    before, after = trunk.layer1.bn1, trunk.layer4.bn1
    assert int(before.num_batches_tracked) == 1 + (first_half > 0)
    assert int(after.num_batches_tracked) == 1 + mixes


def test_the_strongest_dummy_is_the_logit_of_unknown_and_a_garbage_output_is_left_out() -> None:
    network = tiny(dummies=3, loss_outputs=K + 1).eval()
    images = torch.rand(5, 3, 32, 32)
    logits, embedding, pooled = network(images)
    base_logits, base_embedding, base_pooled = network.resnet_base(images)
    assert logits.shape == (5, K + 1)
    torch.testing.assert_close(logits[:, :K], base_logits[:, :K])
    torch.testing.assert_close(logits[:, K], network.dummy_classifier(embedding).max(dim=1).values)
    torch.testing.assert_close((embedding, pooled), (base_embedding, base_pooled))
    assert (network.n_outputs, base_logits.shape[1]) == (K + 1, K + 1)


STAGED = [
    ("resnet18", 32),
    ("resnet50", 32),
    ("regnet_y_400mf", 32),
    ("densenet121", 32),
    ("convnext_tiny", 32),
    ("swin_t", 64),
]
"""A network of each family that has stages, and a side of images that it takes."""


@pytest.mark.parametrize(("name", "side"), STAGED)
def test_trunks_with_four_stages_are_cut_after_the_third(name: str, side: int) -> None:
    torch.manual_seed(0)
    network = ProserNetwork(build_network(name, K), K, 2).train()
    images, rows = torch.rand(8, 3, side, side), torch.arange(2)
    shapes: list[tuple[int, ...]] = []
    cut = network.resnet_base.resnet_base.get_submodule(network._cut)
    cut.register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape))
    cut.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape), prepend=True)
    ((mixed, clean),) = network(images, Mixture(0.5, rows, rows.flip(0)))
    (n_in, *_), (n_out, *places) = shapes
    assert (n_in, n_out) == (8, 8)
    assert places.count(side // 16) == 2  # each of four stages halves the sides, the first one begins at a quarter
    assert (len(mixed.known), len(clean.known)) == (2, 4)


@pytest.mark.parametrize(("name", "side"), [("tiny", 64), *STAGED])
def test_a_frozen_trunk_and_what_comes_after_it_are_the_whole_network(name: str, side: int) -> None:
    torch.manual_seed(0)
    base, images = build_network(name, K).eval(), torch.rand(3, 3, side, side)
    expected = base(images)
    shared = SharedTrunk(copy.deepcopy(base), K, (1, 2), seed=0).eval()
    with torch.no_grad():
        logits, embedding, pooled = shared(images)
    torch.testing.assert_close((logits[:, :K], embedding, pooled), expected)
    whole = ProserNetwork(copy.deepcopy(base), K, 2).eval()
    whole.load_state_dict(SharedTrunk.member_weights(shared.state_dict(), 2))


@pytest.mark.parametrize("rows", [[0, 1, 3], []])
@pytest.mark.parametrize("name", ["tiny", "resnet18", "densenet121"])
def test_one_pass_does_what_two_passes_of_a_half_each_do(name: str, rows: list[int]) -> None:
    torch.manual_seed(0)
    plain = build_network(name, K).double().train()
    images, mixture = (
        torch.rand(9, 3, 64, 64).double(),
        Mixture(0.3, torch.tensor(rows).long(), torch.tensor([3, 0, 1])),
    )
    mixture = mixture._replace(partners=mixture.partners[: len(rows)])
    network = ProserNetwork(copy.deepcopy(plain), K, 2).double().train()
    ((mixed, clean),) = network(images, mixture)
    (mixed.known.square().sum() + clean.known.square().sum()).backward()

    # The same on a network that knows nothing of halves: mixed rows first, then the clean ones.
    trunk, left = plain.resnet_base, []

    def mix(module: nn.Module, inputs: Tensor, hidden: Tensor) -> Tensor:
        left.append(hidden)
        if not rows:
            raise KeyError("no row is left")
        return mixture.of(hidden)

    hook = trunk.get_submodule(trunk_cut(trunk)).register_forward_hook(mix)
    with contextlib.nullcontext() if rows else pytest.raises(KeyError):
        one = plain(images[:4])[0]
    hook.remove()
    two = plain(images[4:])[0]
    ((one.square().sum() if rows else 0.0) + two.square().sum()).backward()
    assert len(left) == 1
    if rows:
        torch.testing.assert_close(mixed.known, one)
    assert len(mixed.known) == len(rows)
    torch.testing.assert_close(clean.known, two)
    ours = dict(network.resnet_base.named_parameters()) | dict(network.resnet_base.named_buffers())
    for part, value in [*plain.named_parameters(), *plain.named_buffers()]:
        torch.testing.assert_close(ours[part], value)
        if isinstance(value, nn.Parameter):
            torch.testing.assert_close(ours[part].grad, value.grad)


@pytest.mark.parametrize("name", ["vgg11", "mobilenet_v2", "vit_b_16"])
def test_trunks_without_stages_are_refused(name: str) -> None:
    with torch.device("meta"), pytest.raises(UsageError, match="has no such stages; take a network of the families"):
        ProserNetwork(build_network(name, K), K, 2)


# --- several workers -----------------------------------------------------------------------------------------------


def halves_of_steps(steps: int) -> list[tuple[Batch, Batch]]:
    """The batches of two workers, of unequal size, one without a pair that could be mixed."""
    random = torch.Generator().manual_seed(0)
    halves = []
    for step in range(steps):
        labels = [torch.randint(K, (9,), generator=random), torch.zeros(6, dtype=torch.int64)]
        halves.append(
            tuple(
                Batch(torch.rand(len(of), 8, generator=random)[:, :, None, None], of, torch.arange(len(of)) + first)
                for of, first in zip(labels, (100 * step, 100 * step + 50), strict=True)
            )
        )
    return halves


def fine_tuned(workers: Workers, steps: list[list[Batch]]) -> tuple[float, list[Tensor]]:
    """Loss and weights after three epochs."""
    torch.manual_seed(0)
    network = ProserNetwork(OpenSetNetwork(Stub(), 5, 5), K, 3).double()
    wrapped = workers.wrap(network, CPU.device)
    steps = [[Batch(b.images.double(), b.labels, b.ids) for b in batches] for batches in steps]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        loss = train_epoch(
            wrapped,
            steps,
            ProserStep(ProserParams(dummies=3), seed=1),
            optimizer,
            place=CPU,
            workers=workers,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            rate_at_step=lambda _: 0.1,
            epoch=epoch,
        )
    return loss, [value.detach() for value in network.parameters()]


def one_of_two(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(fine_tuned(TorchWorkers(), [[halves[rank]] for halves in halves_of_steps(4)]), f"{folder}/{rank}.pth")
    dist.destroy_process_group()


def test_two_workers_take_the_steps_of_one_that_accumulates_their_batches(tmp_path: Path) -> None:
    """In double precision, so that the order of additions is all that differs."""
    loss, weights = fine_tuned(Workers(), [list(halves) for halves in halves_of_steps(4)])
    multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        found, other_weights = torch.load(tmp_path / f"{rank}.pth", weights_only=True)
        assert found == pytest.approx(loss, rel=1e-6)  # losses are summed in single precision
        for one, other in zip(weights, other_weights, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
