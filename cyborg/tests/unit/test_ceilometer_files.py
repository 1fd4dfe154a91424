# SPDX-License-Identifier: Apache-2.0
"""The definitions for Ceilometer name what the notifications of this service carry."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

import cyborg
from cyborg.model import notification
from cyborg.model.device import AttachHandle, AttachType, Deployable, Device, DeviceType
from cyborg.model.notification import HistoryEvent, Notification
from cyborg.model.report import FIGURES, Reading

FILES: Final = Path(cyborg.__file__).resolve().parent.parent / "etc" / "ceilometer"
#: The devices of which a message has a figure and a provider, and one of their members.
EACH: Final = re.compile(
    r"\$\.payload\.accelerators\[\?\(@\.figures\.(\w+) >= -?\d+ & @\.providers\[0\]\)\]\.(.*)"
)


def meters() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = yaml.safe_load((FILES / "accelerator_meters.yaml").read_text())[
        "metric"
    ]
    return listed


def name_of(meter: Mapping[str, Any]) -> str:
    """Return the name of the samples; an expression puts it in place of the driver's name."""
    found = re.search(r"\.driver\.`sub\(/\^\.\*\$/, ([a-z.]+)\)`$", meter["name"])
    return found[1] if found else str(meter["name"])


def messages() -> dict[str, Notification]:
    """Return a message of each kind that a meter is made of, by its event type."""
    handle = AttachHandle("0000:81:00.0", AttachType.PCI, {})
    part = Deployable("c_0000:81:00.0", "FPGA", "card", handles=(handle,))
    device = Device("0000:81:00.0", DeviceType.FPGA, "v", "m", {}, (part,))
    reading = Reading("driver", device.key, dict.fromkeys(FIGURES, 0.0))
    usage = notification.usage(
        "compute", 0, [reading], [("driver", device)], providers={part.name: "provider"}
    )
    bound = HistoryEvent(1, 0, "arq", "uuid", "Bound", "instance", "compute", None, None)
    state = notification.arq_state(bound, "project")
    assert state is not None
    return {message.event_type: message for message in (usage, state)}


def test_each_meter_reads_members_of_its_message() -> None:
    by_type = messages()
    for meter in meters():
        payload = by_type[meter["event_type"]].payload
        paths = [meter["timestamp"], *meter["metadata"].values()]
        if "lookup" in meter:
            (accelerator,) = payload["accelerators"]
            parts = [EACH.fullmatch(meter[name]) for name in ("name", "volume", "resource_id")]
            figures, members = zip(*(part.groups() for part in parts if part), strict=True)
            assert len(figures) == 3
            assert len(set(figures)) == 1
            assert figures[0] in accelerator["figures"]
            assert members[1:] == (f"figures.{figures[0]}", "providers[0]")
            assert accelerator["driver"]
            assert accelerator["providers"]
        else:
            assert meter["volume"] == 1
            paths += [meter["resource_id"], meter["project_id"]]
        for path in paths:
            assert payload[path.removeprefix("$.payload.")] is not None, path


def test_each_figure_with_a_metric_has_a_meter() -> None:
    read = {match[1] for meter in meters() if (match := EACH.match(meter["name"]))}
    assert read == set(FIGURES)


def test_gnocchi_has_a_metric_for_each_meter() -> None:
    resources = yaml.safe_load((FILES / "gnocchi_resources.yaml").read_text())["resources"]
    metrics = [name for resource in resources for name in resource["metrics"]]
    assert sorted(metrics) == sorted(name_of(meter) for meter in meters())
    kept = {name for meter in meters() for name in meter["metadata"]}
    for resource in resources:
        for name, path in resource["attributes"].items():
            assert path == f"resource_metadata.{name}"
            assert name in kept
