# SPDX-License-Identifier: Apache-2.0
"""Alert rules and dashboard name what the code shows, and lead to what the documents say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cyborg.metrics import catalogue
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures import pages

ROOT = Path(__file__).parents[3]
FILES = ROOT / "etc" / "monitoring"
MONITORING = (ROOT / "doc" / "source" / "admin" / "monitoring.rst").read_text()
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())
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
_SERIES = re.compile(r"(cyborg_[a-z_]+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|without) \(([^)]*)\)")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DASHBOARD["panels"]
    return found


def expressions() -> Iterator[Any]:
    for rule in RULES:
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in panels():
        for target in panel.get("targets", []):
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


def metric(series: str) -> catalogue.Metric:
    """The metric that a series is of."""
    plain = series
    for suffix in ("_bucket", "_count", "_sum"):
        plain = plain.removesuffix(suffix)
    found = METRICS[series if series in METRICS else plain]
    assert series == found.name or found.kind == "histogram", series
    return found


@pytest.mark.parametrize("expression", list(expressions()))
def test_metrics_and_labels_are_in_the_catalogue(expression: str):
    named = _SERIES.findall(expression)
    assert named
    known = set(ADDED)
    for series, matchers in named:
        labels = set(metric(series).labels)
        asked = {one.group(1) for one in re.finditer(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)}
        assert asked <= labels | ADDED, series
        known |= labels
    for grouping in _GROUPING.findall(expression):
        assert {one.strip() for one in grouping.split(",")} <= known


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alert_has_meaning_and_remedy(rule: dict[str, Any]):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = notes["runbook_url"].partition("#")
    assert page == "https://docs.openstack.org/cyborg/latest/admin/monitoring.html"
    # The anchor of a title that is one word is the word.
    assert anchor == rule["alert"].lower()
    assert f"\n{rule['alert']}\n{'-' * len(rule['alert'])}\n" in MONITORING
    used = set(re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]))
    kept = {word.strip() for one in _GROUPING.findall(rule["expr"]) for word in one.split(",")}
    assert used <= kept | ADDED


def test_every_alert_is_tested():
    tests = (FILES / "alerts_test.yaml").read_text()
    assert [rule["alert"] for rule in RULES if rule["alert"] not in tests] == []
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_each_process_has_an_alert_for_silence():
    silent = " ".join(rule["expr"] for rule in RULES)
    for binary in (AGENT, API, CONDUCTOR):
        assert f'cyborg_service_heartbeat_age_seconds{{binary="{binary}"}}' in silent


def test_dashboard_is_valid():
    assert DASHBOARD["schemaVersion"] >= 39
    assert {"title", "uid", "templating", "time", "panels"} <= DASHBOARD.keys()
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels())))
    assert used <= variables.keys()
    for panel in panels():
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
            refs = [target["refId"] for target in panel["targets"]]
            assert len(set(refs)) == len(refs) > 0


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + dx, place["y"] + dy)
            for dx in range(place["w"])
            for dy in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
