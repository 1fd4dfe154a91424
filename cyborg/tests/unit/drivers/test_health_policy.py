# SPDX-License-Identifier: Apache-2.0
"""The health policy: shipped entries, entries of operators, and faults of files."""

from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers import health_policy
from cyborg.drivers.health_policy import HealthPolicy
from cyborg.model.health import Condition

ENTRY = "- {kind: card, signal: fault, codes: 1, condition: drain, action: Reset it., source: doc}"


def write(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "policy.yaml").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("fault", "condition"),
    [
        (("nvidia", "xid", 79), Condition.DEAD),
        (("nvidia", "xid", 31), Condition.OK),
        (("nvidia", "xid", 48), Condition.DRAIN),
        (("nvidia", "xid", 74), Condition.DRAIN),
        (("nvidia", "xid", 92), Condition.DEGRADED),
        (("nvidia", "xid", 95), Condition.DRAIN),
        (("nvidia", "xid", 109), Condition.DRAIN),
        (("nvidia", "xid", 143), Condition.DRAIN),
        (("nvidia", "xid", 146), Condition.DRAIN),
        (("nvidia", "xid", 148), Condition.DEGRADED),
        (("pci", "aer_fatal", "DLP"), Condition.DRAIN),
        (("pci", "aer_correctable", "BadTLP"), Condition.DEGRADED),
        (("pci", "aer_correctable", "NonFatalErr"), Condition.OK),
        (("pci", "idle_link_speed", "below_best"), Condition.OK),
        (("nvme", "critical_warning", 3), Condition.DRAIN),
        (("devlink", "reporter", "fw_fatal"), Condition.DRAIN),
    ],
)
def test_the_shipped_policy_knows_faults_of_the_kinds(
    fault: tuple[str, str, str | int], condition: Condition
) -> None:
    assert health_policy.shipped().ruling(*fault).condition is condition


def test_every_shipped_entry_has_a_source_and_every_reserving_one_an_action() -> None:
    for fault, ruling in health_policy.shipped().rulings.items():
        assert ruling.source, fault
        if ruling.condition in (Condition.DRAIN, Condition.DEAD):
            assert (ruling.action or "").endswith("."), fault


def test_a_fault_without_an_entry_degrades_the_device() -> None:
    ruling = health_policy.shipped().ruling("nvidia", "xid", 9999)
    assert (ruling.condition, ruling.action) == (Condition.DEGRADED, None)


def test_entries_of_operators_replace_shipped_ones_code_by_code(tmp_path: Path) -> None:
    text = (
        "- {kind: nvidia, signal: xid, codes: [79], condition: ignore, source: our own tests}\n"
        "- {kind: card, signal: fault, codes: '*', condition: degraded, source: vendor}\n"
    )
    policy = health_policy.read([str(write(tmp_path / "own", text))])
    assert policy.ruling("nvidia", "xid", 79).condition is Condition.OK
    assert policy.ruling("nvidia", "xid", 95).condition is Condition.DRAIN
    assert policy.ruling("card", "fault", "any").condition is Condition.DEGRADED
    assert policy.ruling("nvidia", "xid", 79).place == f"{tmp_path}/own/policy.yaml:1"


def test_entry_for_a_signal_that_nothing_tells_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        "- {kind: nvidia, signal: xid, codes: [1079, 1095], condition: ignore, source: tests}\n"
        "- {kind: nvidia, signal: xids, codes: [79, 95], condition: ignore, source: our tests}\n"
    )
    health_policy.read([str(write(tmp_path / "own", text))])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{tmp_path}/own/policy.yaml:2: this service does not")
    assert "signal xids of kind nvidia" in record.getMessage()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- {kind: [", "it is not YAML"),
        ("kind: card", "1: it is not a list of entries"),
        ("- {color: red}", "1: 'color' is not a key of an entry, which can have kind, signal"),
        ("- kind: a\n  kind: b", "2: kind is also set in line 1"),
        ("- {kind: card, signal: fault, codes: 1, condition: drain, action: Reset.}", "source"),
        (ENTRY.replace("drain", "broken"), "condition cannot be 'broken': it is one of ignore, de"),
        (ENTRY.replace(", action: Reset it.", ""), "an entry with condition drain must set action"),
        (ENTRY.replace("codes: 1", "codes: {a: b}"), "codes is not a list of values"),
        (ENTRY.replace("codes: 1", "codes: [1, [2]]"), "codes is not a list of values"),
        (ENTRY.replace("card", "[card]"), "kind is not one value"),
        (ENTRY.replace("codes: 1", "codes: [1, '']"), "codes has an empty value"),
        (f"{ENTRY}\n{ENTRY}", "policy.yaml:2: "),
        (ENTRY.replace("codes: 1", "codes: 1, until: [sleep]"), "until is a list of bind, reset, "),
        (ENTRY.replace("drain", "ignore, until: bind"), "whose condition is not ignore"),
    ],
)
def test_a_fault_of_a_file_is_reported_with_its_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(exception.ConfigError) as error:
        HealthPolicy.load([write(tmp_path / "own", text)])
    assert str(error.value).startswith(f"{tmp_path}/own/policy.yaml:")
    assert fault in str(error.value)


def test_a_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(exception.ConfigError, match=r"health_policy_dirs.*no directory"):
        health_policy.read([str(tmp_path / "missing")])
