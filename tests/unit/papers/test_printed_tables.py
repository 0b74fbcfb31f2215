"""The printed figures, as far as they can be checked against themselves."""

import numpy as np

from oscbench.papers.tables import printed_networks, printed_results, printed_searches
from oscbench.tuning.published import published_best

KNOWN_TEST_SAMPLES = {"p1": 5800, "p2": 1500, "p3": 7550}
RATES = ["ccr_1e-3", "ccr_1e-2", "ccr_1e-1"]


def test_test_results_are_whole_samples_and_rise_with_the_rate():
    table = printed_results()
    assert len(table) == 90
    assert not table.duplicated(["protocol", "algorithm", "training", "kind"]).any()
    samples = table["protocol"].map(KNOWN_TEST_SAMPLES)
    for name in [*RATES, "accuracy"]:
        off = np.abs(table[name] * samples - np.round(table[name] * samples))
        assert np.nanmax(off / samples) <= 5e-5  # what four printed digits leave
    rising = table[[*RATES, "accuracy"]].fillna(0).diff(axis=1).iloc[:, 1:]
    assert (rising >= 0).all(axis=None)
    # a blank stands for the lowest rates only
    blank = table[RATES].isna().to_numpy()
    assert (blank[:, :-1] >= blank[:, 1:]).all()


def test_rows_of_searches_add_up_unless_they_are_marked():
    table = printed_searches()
    cells = table[[*RATES, "ccr_1"]]
    adds_up = (np.abs(cells.sum(axis=1) - table["sum"]) < 2.05e-4) & table["ccr_1"].notna()
    assert (table["ok"].eq(1) != adds_up).sum() == 1  # a value that stands in a wrong column, which no sum tells
    assert adds_up[table["ok"] == 1].all()
    assert (table["ok"] == 0).sum() == 13
    assert table.loc[table["ok"] == 0, "note"].notna().all()
    settings = table.groupby(["algorithm", "protocol"]).size() / 3
    assert settings.round(1).to_dict() == {
        ("evm", "p1"): 63, ("evm", "p2"): 63, ("evm", "p3"): 63,
        ("openmax", "p1"): 68, ("openmax", "p2"): 70, ("openmax", "p3"): 76,
        ("proser", "p1"): 6, ("proser", "p2"): 6, ("proser", "p3"): 6,
    }  # fmt: skip


def test_the_published_optima_are_the_best_rows_where_the_tables_are_whole():
    table = printed_searches().query("ok == 1 and algorithm != 'openmax'")
    differing = 0
    for (algorithm, protocol, training), own in table.groupby(["algorithm", "protocol", "training"]):
        differing += published_best(algorithm, protocol, training).sum != own["sum"].max()
    assert differing == 1  # PROSER with EOS on protocol 3, whose row is damaged


def test_networks_have_a_row_for_each_selection():
    table = printed_networks()
    assert table.groupby("epoch_selection").size().to_dict() == {"best": 9, "last": 9}
    assert table["ccr_1"].between(0.6, 0.8).all()
