# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, its command line and its tables."""

import pytest

from cyborg_tools.bench import options, show
from cyborg_tools.bench.figures import AuditFigure, Count, Figure, Results, Samples


def _figure(p50: float, floor: float | None, aim: float | None) -> Figure:
    samples = Samples([p50 / 1000] * 3, 1.0)
    return Figure.of("list ARQs", samples, others=1000, rows=1000, floor_ms=floor, aim=aim)


def test_median_and_p99_are_computed():
    found = Samples([one / 1000 for one in range(1, 201)], elapsed=2.0)
    assert (found.p50_ms, found.p99_ms, found.per_second) == (100.5, 199.0, 100.0)


def test_p99_of_few_samples_is_the_slowest():
    assert Samples([0.001, 0.004], elapsed=1.0).p99_ms == 4.0


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


def test_tables_mark_exceeded_values():
    results = Results("sqlite 3", "fake")
    results.counts = [Count("create 3 ARQs", 10, 5, 1, 1, (4, 1, 1))]
    results.figures = [_figure(9.0, 2.0, 3.0)]
    shown = show.tables(results, in_process=True)
    assert "create 3 ARQs among 10: 5 / 1 / 1, allowed 4 / 1 / 1" in shown
    assert "4.50 !" in shown
    assert "--transport-url" in shown


def test_json_document_equals_the_tables():
    results = Results("sqlite 3", "fake")
    results.counts = [Count("create 3 ARQs", 10, 5, 1, 1, (4, 1, 1))]
    results.figures = [_figure(9.0, 2.0, 3.0)]
    document = results.document()
    assert document["counts"][0]["exceeded"] is True
    assert document["figures"][0]["ratio"] == pytest.approx(4.5)


def test_defaults_need_no_server_and_measure_all_sizes():
    plan = options.parse([])
    assert plan.database_url is None
    assert plan.in_process
    assert plan.others == (10, 1_000, 10_000)
    assert plan.devices == (8, 64, 256)
    assert plan.clients == (1, 8)


def test_audits_may_be_measured_alone():
    assert not options.parse([]).only_audits
    plan = options.parse(["--audit", "10", "20"])
    assert (plan.audits, plan.only_audits) == ((10, 20), True)
    results = Results("sqlite 3", "fake", audits=[AuditFigure(1000, 2.5, 99.0, 1)])
    assert "1,000      2.5        99         1" in show.tables(results, in_process=True)
    assert results.document()["audits"][0]["mebibytes"] == 99.0


def test_quick_run_has_one_size():
    assert options.parse(["--quick"]).others == (10,)


def test_wrong_usage_prints_a_hint(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        options.parse(["--fast"])
    assert "--fast" in capsys.readouterr().err
