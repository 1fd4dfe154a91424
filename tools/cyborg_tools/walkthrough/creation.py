# SPDX-License-Identifier: Apache-2.0
"""The step that creates, labels, offers and deletes an accelerator."""

from cyborg_tools.quickstart.clients import require
from cyborg_tools.walkthrough.environment import DRIVER, RACK, SOFT, SOFT_CLASS
from cyborg_tools.walkthrough.scenario import Scenario

_UNITS = 3


def is_created_and_deleted(scenario: Scenario) -> None:
    """Create an accelerator on the second backend, beside the discovered ones."""
    cyborg = scenario.cyborg
    scenario.screen.step("An accelerator is created on the second backend, labelled, and deleted")
    made = cyborg.asks(
        f"accelerator-create --host {RACK} --driver {DRIVER} --backend {SOFT} --model compressor"
        f" --type FPGA --resource-class {SOFT_CLASS} --units {_UNITS} --trait CUSTOM_ZIP"
        " -c uuid -c hostname -c backend -c model -c status"
    )
    require((made["hostname"], made["backend"]) == (RACK, SOFT), "it is on another host or backend")
    cyborg.is_refused(
        f"accelerator-create --host {RACK} --driver {DRIVER} --backend none --model compressor"
        f" --type FPGA --resource-class {SOFT_CLASS}",
        "Backend none could not be found",
    )
    uuid = made["uuid"]
    shown = cyborg.asks(
        f"accelerator-update {uuid} --status ready --wait --label rack=7 --label owner=blue"
        " -c status -c labels"
    )
    require(shown == {"status": "enabled", "labels": {"rack": "7", "owner": "blue"}}, "not so")
    scenario.awaits_offered(RACK, SOFT_CLASS, _UNITS)
    found = cyborg.asks("accelerator-list --label rack=7 -c uuid -c model")
    require([one["uuid"] for one in found] == [uuid], "it is not found by its label")
    cyborg.does(f"accelerator-delete {uuid}")
    left = f"accelerator-list --host {RACK} --backend {SOFT} -c uuid -c model"
    cyborg.awaits(left, lambda rows: uuid not in {one["uuid"] for one in rows}, "it is not gone")
    # The devices that the driver found on the backend are still inactive.
    scenario.awaits_offered(RACK, SOFT_CLASS, 0)
    scenario.screen.ok(f"Placement offered its {_UNITS} units and has removed its provider.")
