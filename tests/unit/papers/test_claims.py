"""The claims' figures, on the tables that the papers printed and on panels made for the purpose."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from oscbench.papers.claims import CLAIMS
from oscbench.papers.panel import ALGORITHMS, MEASURES, RATES, TRAININGS, Panel, best_settings, panel, regrets
from oscbench.papers.tables import printed_results, printed_searches

# What the printed tables give, in the order of the statistics, to three digits.
PUBLISHED = {
    1: (14 / 15, 10 / 15, 0.587, 0.116),
    2: (15 / 90, 8 / 30, 17 / 18, 1 / 18),
    3: (-0.119, -0.096, -0.093, 0.074, 0.093, 0.065),
    4: (13 / 18, 0.082, 0.170),
    5: (0.201, 0.201 + 0.002, 0.129, 0.129 - 0.056),
    6: (np.mean([-0.183, -0.019, -0.058, 0.004, -0.053, -0.022]), -0.220),
    7: (0.015, 0.014, 0.011, -0.016),
    8: (0.056, 0.019),
    9: (0.094, 0.115, 0.051),
    10: (0.128, 0.090, 1.5, 0.7),
}


@pytest.fixture(scope="module")
def published():
    return panel([printed_results()], [printed_searches().query("ok == 1")])


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.number))
def test_the_printed_tables_say_what_the_papers_say(published, claim):
    found = [float(statistic.of(published)[0]) for statistic in claim.statistics]
    assert found == pytest.approx(PUBLISHED[claim.number], abs=6e-4)
    assert all(statistic.supports(value) for statistic, value in zip(claim.statistics, found, strict=True))


def plain_cell(protocol, algorithm, training, kind):
    """One printed row, blanks as 0."""
    table = printed_results()
    row = table[(table["protocol"] == protocol) & (table["algorithm"] == algorithm) & (table["training"] == training)]
    return row[row["kind"] == kind].iloc[0].fillna(0)


def test_some_figures_by_hand():
    trainings, protocols = ("softmax", "garbage", "eos"), ("p1", "p2", "p3")
    evm = [
        sum(plain_cell(p, "evm", "eos", "unknown")[r] - plain_cell(p, "evm", "softmax", "unknown")[r] for r in RATES)
        for p in protocols
    ]
    assert np.mean(evm) == pytest.approx(PUBLISHED[6][1], abs=6e-4)
    openmax = [
        plain_cell("p1", "openmax", t, "unknown")["ccr_1e-2"] - plain_cell("p1", "mss", t, "unknown")["ccr_1e-2"]
        for t in trainings
    ]
    assert np.mean(openmax) == pytest.approx(0.201, abs=6e-4)
    systems = [plain_cell("p3", a, t, "unknown") for a in ALGORITHMS for t in trainings]
    taus = [kendalltau([s["auroc"] for s in systems], [s[rate] for s in systems]).statistic for rate in RATES]
    assert np.mean(taus) == pytest.approx(PUBLISHED[4][2], abs=6e-4)


def test_several_results_give_what_each_gives_alone():
    other = printed_results().assign(
        **{name: lambda t, n=name: t[n].sample(frac=1, random_state=3).values for name in MEASURES}
    )
    alone = [panel([table]) for table in (printed_results(), other)]
    both = panel([printed_results(), other])
    for claim in CLAIMS[:-1]:
        for statistic in claim.statistics:
            expected = [float(statistic.of(one)[0]) for one in alone]
            assert statistic.of(both).tolist() == pytest.approx(expected, nan_ok=True)


def test_each_figure_is_missing_where_one_of_its_cells_is():
    full = panel([printed_results()], [printed_searches()])
    empty = Panel(values=np.full_like(full.values, np.nan))
    for claim in CLAIMS:
        for statistic in claim.statistics:
            assert np.isfinite(statistic.of(full)).all(), statistic.name
            assert np.isnan(statistic.of(empty)).all(), statistic.name


@pytest.mark.parametrize("claim", CLAIMS[:-1], ids=lambda claim: str(claim.number))
def test_a_missing_cell_makes_a_figure_missing_or_leaves_it_alone(claim):
    full = panel([printed_results()])
    for place in np.ndindex(full.values.shape[1:-1]):
        values = full.values.copy()
        values[(0, *place)] = np.nan
        for statistic in claim.statistics:
            found, whole = statistic.of(Panel(values=values))[0], statistic.of(full)[0]
            assert np.isnan(found) or found == pytest.approx(whole), (statistic.name, place)


def test_a_rate_that_nobody_reaches_is_nobodys_and_equals_share_a_column():
    statistics = {statistic.name: statistic for claim in CLAIMS for statistic in claim.statistics}
    eos, garbage, other, lowest, mean = (
        statistics[name]
        for name in (
            "share of the 18 columns that EOS wins",
            "share of the 18 columns that Garbage wins",
            "share of the 18 columns whose best CCR is not at the best AUROC",
            "smallest Kendall correlation of AUROC with CCR",
            "mean of it on P3, unknowns",
        )
    )
    values = panel([printed_results()]).values
    before = {statistic: statistic.of(Panel(values=values))[0] for statistic in (eos, garbage, other)}
    values[..., 0] = 0  # nobody reaches 1e-3: twelve columns are left
    won = [panel_columns(values)[:, column].argmax() // 5 for column in range(12)]
    assert eos.of(Panel(values=values))[0] == pytest.approx(won.count(2) / 12)
    assert garbage.of(Panel(values=values))[0] == pytest.approx(won.count(1) / 12)
    assert before[eos] == pytest.approx(17 / 18)
    missed = [
        panel_columns(values)[:, column].argmax() != np.repeat(panel_aurocs(values), 2, axis=1)[:, column].argmax()
        for column in range(12)
    ]
    assert other.of(Panel(values=values))[0] == pytest.approx(np.mean(missed))
    taus = [
        kendalltau(np.repeat(panel_aurocs(values), 2, axis=1)[:, column], panel_columns(values)[:, column]).statistic
        for column in range(12)
    ]
    assert lowest.of(Panel(values=values))[0] == pytest.approx(min(taus))
    assert mean.of(Panel(values=values))[0] == pytest.approx(np.mean(taus[-2:]))
    values[..., :3] = 0.5  # all alike: five of fifteen systems have each training
    assert eos.of(Panel(values=values))[0] == pytest.approx(1 / 3)
    assert other.of(Panel(values=values))[0] == 0
    assert np.isnan(lowest.of(Panel(values=values))[0])


def panel_columns(values):
    """(15, 12) CCR at 1e-2 and 1e-1 of all systems, for each protocol and kind."""
    return np.array([values[0, :, t, a, :, 1:3].ravel() for t in range(3) for a in range(5)])


def panel_aurocs(values):
    """(15, 6) AUROC beside them."""
    return np.array([values[0, :, t, a, :, MEASURES.index("auroc")].ravel() for t in range(3) for a in range(5)])


def test_a_blank_rate_counts_as_nothing_and_rows_of_other_methods_are_left_out():
    table = printed_results()
    more = pd.concat([table, table.assign(algorithm="knn", accuracy=1.0), table.assign(protocol="mine")])
    assert np.array_equal(panel([table]).values, panel([more]).values)
    at = (0, 0, TRAININGS.index("softmax"), ALGORITHMS.index("mss"), 0, RATES.index("ccr_1e-3"))
    assert np.isnan(table.iloc[0]["ccr_1e-3"])
    assert panel([table]).values[at] == 0


def test_regrets_are_the_differences_of_two_columns():
    trials = pd.DataFrame(
        {
            "algorithm": "evm",
            "protocol": ["p1"] * 3 + ["p2"] * 3,
            "training": "eos",
            "tail_size": [1, 2, 3] * 2,
            "sum": [0.5, 0.9, 0.7, 1.5, 1.0, np.nan],
        }
    )
    found = regrets(trials, "evm")
    assert found["regret"].tolist() == pytest.approx([0.5, 0.4])
    assert best_settings(trials, "evm")["tail_size"].tolist() == [2, 1]
    untried = regrets(trials.iloc[[0, 1, 2, 3]], "evm")  # p2 never tried what is best on p1
    assert np.isnan(untried["regret"][0])
