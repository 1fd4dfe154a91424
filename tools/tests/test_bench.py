# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, its command line and its tables."""

import pytest

from cyborg_tools.bench import options
from cyborg_tools.bench.figures import (
    AuditFigure,
    Count,
    Figure,
    Results,
    Samples,
    ScanFigure,
    WideQuery,
    WideTreeFigure,
    tables,
)


def _figure(p50: float, floor: float | None, aim: float | None) -> Figure:
    samples = Samples([p50 / 1000] * 3, 1.0)
    return Figure.of("list ARQs", samples, others=1000, rows=1000, floor_ms=floor, aim=aim)


@pytest.mark.parametrize(
    ("times", "elapsed", "figures"),
    [
        ([one / 1000 for one in range(1, 201)], 2.0, (100.5, 199.0, 100.0)),
        # The p99 of few is the slowest.
        ([0.001, 0.004], 1.0, (2.5, 4.0, 2.0)),
    ],
)
def test_median_and_p99_are_computed(
    times: list[float], elapsed: float, figures: tuple[float, float, float]
):
    samples = Samples(times, elapsed)
    assert (samples.p50_ms, samples.p99_ms, samples.per_second) == figures


@pytest.mark.parametrize(
    ("p50", "floor", "aim", "ratio", "missed"),
    [
        (6.0, 2.0, 3.0, 3.0, False),
        (6.2, 2.0, 3.0, 3.1, True),
        (9.0, 2.0, None, 4.5, False),
        (9.0, None, 2.0, None, False),
    ],
)
def test_ratio_is_compared_with_its_target(
    p50: float, floor: float | None, aim: float | None, ratio: float | None, missed: bool
):
    one = _figure(p50, floor, aim)
    assert one.ratio == pytest.approx(ratio)
    assert one.missed is missed


def test_each_cost_is_compared_with_its_allowance():
    assert not Count("x", 10, 3, 1, 1, (4, 1, 1)).exceeded
    assert Count("x", 10, 3, 2, 1, (4, 1, 1)).exceeded
    assert not Count("x", 10, 99, 9, 9, None).exceeded


def test_tables_and_json_tell_what_is_exceeded():
    results = Results("sqlite 3", "fake", audits=[AuditFigure(1000, 2.5, 99.0, 1)])
    assert "1,000      2.5        99         1" in tables(results, in_process=True)
    results.counts = [Count("create 3 ARQs", 10, 5, 1, 1, (4, 1, 1))]
    results.figures = [_figure(9.0, 2.0, 3.0)]
    shown = tables(results, in_process=True)
    assert "create 3 ARQs among 10: 5 / 1 / 1, allowed 4 / 1 / 1" in shown
    assert "4.50 !" in shown
    assert "--transport-url" in shown
    document = results.document()
    assert document["counts"][0]["exceeded"] is True
    assert document["figures"][0]["ratio"] == pytest.approx(4.5)
    assert document["audits"][0]["mebibytes"] == 99.0
    scans = [ScanFigure(1000, 20000, 80.4, 90.0, 120.0, 1.0, 70.0)]
    assert "1,000              20,000    80     90    120           1     70" in tables(
        Results("sqlite 3", "fake", scans=scans), in_process=True
    )
    queries = [
        WideTreeFigure(5, 8, 60, WideQuery(2.093, 1000), WideQuery(0.27, 1000)),
        WideTreeFigure(8, 8, 60, None, WideQuery(3.0, 1000)),
    ]
    shown = tables(Results("sqlite 3", "fake", wide_trees=queries), in_process=True)
    assert "5             8      2.09       1,000     0.27       1,000" in shown
    assert "8             8      > 60           -     3.00       1,000" in shown


def test_defaults_need_no_server_and_measure_all_sizes():
    plan = options.parse([])
    assert (plan.database_url, plan.in_process, plan.only_parts) == (None, True, False)
    assert (plan.others, plan.devices) == ((10, 1_000, 10_000), (8, 64, 256))
    assert plan.clients == (1, 8)
    assert options.parse(["--quick"]).others == (10,)
    audit = options.parse(["--audit", "10", "20"])
    assert (audit.audits, audit.scans, audit.only_parts) == ((10, 20), (), True)
    scan = options.parse(["--scan", "10"])
    assert (scan.audits, scan.scans, scan.only_parts) == ((), (10,), True)
    assert (plan.wide_trees, plan.query_limit) == ((), 60)
    wide = options.parse(["--wide-tree"])
    assert (wide.wide_trees, wide.signing, wide.only_parts) == ((5, 6, 8), False, True)
    capacity = options.parse(["--capacity", "10"])
    assert (capacity.capacities, capacity.audits, capacity.only_parts) == ((10,), (), True)
    explain = options.parse(["--explain", "10"])
    assert (explain.explanations, explain.audits, explain.only_parts) == ((10,), (), True)
    assert options.parse(["--wide-tree", "5"]).wide_trees == (5,)


def test_wrong_usage_prints_a_hint(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        options.parse(["--fast"])
    assert "--fast" in capsys.readouterr().err
