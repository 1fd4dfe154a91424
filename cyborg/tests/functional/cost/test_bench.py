# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs from end to end in its own processes and reports its results."""

import json

from oslo_config import cfg

from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.schema.databases import SERVER
from cyborg_tools.bench.options import Plan
from cyborg_tools.bench.run import Run


def test_small_run_measures_every_size(conf: cfg.ConfigOpts):
    plan = Plan(
        database_url=SERVER or None,
        transport_url=TRANSPORT_URL,
        others=(10,),
        clients=(1, 2),
        devices=(2,),
        seconds=0.05,
        as_json=True,
        audits=(200,),
        scans=(40,),
        signing=True,
        wide_trees=(2,),
        explanations=(3,),
        capacities=(3,),
        query_limit=60,
        only_parts=False,
    )
    told: list[str] = []
    results = Run(plan, conf, told.append).measure()
    assert results.exceeded == []
    figures = {(one.name, one.clients): one for one in results.figures}
    assert figures["list ARQs", 1].rows == 10
    assert figures["show an ARQ", 1].ratio is not None
    assert figures["whole ARQ life cycle", 2].samples >= 6
    assert (figures["whole ARQ life cycle", 1].ratio is None) is plan.in_process
    assert figures["first report", 1].rows == figures["unchanged report", 1].rows == 2
    (audit,) = results.audits
    assert (audit.arqs, audit.findings) == (200, 1)
    (scan,) = results.scans
    assert (scan.functions, scan.open_files) == (40, 800)
    (signing,) = results.signing
    assert (signing.hmacs, signing.bytes) == (4, 235)
    assert (signing.ratio is None) is plan.in_process is (signing.calls == 0)
    (wide,) = results.wide_trees
    assert [query and query.candidates for query in (wide.defaults, wide.options)] == [56, 56]
    (explanation,) = results.explanations
    assert (explanation.hosts, explanation.devices) == (3, 16)
    (capacity,) = results.capacities
    assert (capacity.hosts, capacity.devices, capacity.profiles) == (3, 16, 20)
    assert json.loads(json.dumps(results.document()))["figures"]
    assert any("10 unrelated" in sentence for sentence in told)
