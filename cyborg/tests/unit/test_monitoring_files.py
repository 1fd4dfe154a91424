# SPDX-License-Identifier: Apache-2.0
"""Alert rules, dashboard and the page about them name the metrics that the processes expose."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cyborg.tests.fixtures import pages

ROOT = Path(__file__).parents[3]
FILES = ROOT / "etc" / "monitoring"
MONITORING = (ROOT / "doc" / "source" / "admin" / "monitoring.rst").read_text()
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
METRICS = {
    one.name: one for one in (*pages.API_METRICS, *pages.CONDUCTOR_METRICS, *pages.AGENT_METRICS)
}
#: What Prometheus adds: where it scraped a value, and the bucket of a histogram.
ADDED = {"instance", "job", "le"}
#: The series of each metric.
SERIES = {
    f"{one.name}{suffix}": one
    for one in METRICS.values()
    for suffix in (("_bucket", "_count", "_sum") if one.kind == "histogram" else ("",))
}


def expressions() -> Iterator[Any]:
    for rule in RULES:
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


@pytest.mark.parametrize("expression", list(expressions()))
def test_metrics_and_labels_are_in_the_catalogue(expression: str) -> None:
    named = re.findall(r"(cyborg_[a-z_]+)(?:\{([^}]*)\})?", expression)
    assert named
    known = set(ADDED)
    for series, matchers in named:
        labels = set(SERIES[series].labels)
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= labels | ADDED, series
        known |= labels
    for grouping in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression):
        assert set(re.findall(r"\w+", grouping)) <= known


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_link_of_each_alert_leads_to_its_entry(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    page = "https://docs.openstack.org/cyborg/latest/admin/monitoring.html"
    assert rule["annotations"]["runbook_url"] == f"{page}#{name.lower()}"
    assert f"\n{name}\n---" in MONITORING


def test_page_has_kind_and_labels_of_every_metric() -> None:
    rows = re.findall(r"\* - ``(cyborg_\w+)``\n +- (\w+)\n +- (.+)\n", MONITORING)
    assert sorted(rows) == sorted(
        (one.name, one.kind, ", ".join(one.labels) or "-") for one in METRICS.values()
    )


def test_page_names_no_other_metric() -> None:
    assert set(re.findall(r"cyborg_[a-z_]+", MONITORING)) <= METRICS.keys()
