# SPDX-License-Identifier: Apache-2.0
"""Policy rules of devices, their deployables, and the attributes of deployables."""

from cyborg.policies import base

RULES = [
    base.rule(
        "cyborg:device:get_all",
        f"{base.MANAGER_OR_ADMIN} or {base.OPERATOR}",
        "List devices.",
        "GET /v2/devices",
        older=base.ADMIN,
    ),
    base.rule(
        "cyborg:device:get_one",
        f"{base.MANAGER_OR_ADMIN} or {base.OPERATOR}",
        "Show a device.",
        "GET /v2/devices/{uuid}",
        older=base.ADMIN,
    ),
    base.rule(
        "cyborg:device:get_own",
        base.READER_OR_ADMIN,
        "List and show the devices that the ARQs of the caller's project hold, without host "
        "names and addresses (from microversion 2.100).",
        "GET /v2/devices",
        "GET /v2/devices/{uuid}",
    ),
    base.rule(
        "cyborg:device:get_unheld",
        base.MANAGER_OR_OPERATOR,
        "Let the rules that list and show devices, deployables, attributes, services, backends, "
        "drivers and hardware apply to those of which the caller's project holds no unit. What "
        "other projects do with them stays hidden.",
        "GET /v2/devices",
        "GET /v2/devices/{uuid}",
    ),
    base.rule(
        "cyborg:device:create",
        base.OPERATOR,
        "Create a device on a backend whose driver supports it.",
        "POST /v2/devices",
    ),
    base.rule(
        "cyborg:device:update",
        base.OPERATOR,
        "Update the status and labels of a device, and the model and traits of a device that "
        "was created. Show the servers that a drain of a device waits for.",
        "PATCH /v2/devices/{uuid}",
        "GET /v2/devices/{uuid}/drain",
    ),
    base.rule(
        "cyborg:device:delete",
        base.OPERATOR,
        "Delete a device that was created or is lost.",
        "DELETE /v2/devices/{uuid}",
    ),
    base.rule(
        "cyborg:device:leave_unclean",
        base.ADMIN,
        "Remove hosts, drivers and devices with ?force=true although some of their units are not "
        "cleaned. The units stay dirty: they are cleaned when a host shows them again.",
        "DELETE /v2/devices/{uuid}",
        "DELETE /v2/services/{uuid}",
        "DELETE /v2/drivers/{driver}",
    ),
    base.rule(
        "cyborg:device:label",
        base.MEMBER_OR_ADMIN,
        "Update the labels of a device that the ARQs of the caller's project hold.",
        "PATCH /v2/devices/{uuid}",
    ),
    base.rule(
        "cyborg:device:disable",
        base.OPERATOR,
        "Take a device out of service.",
        "POST /v2/devices/{uuid}/disable",
    ),
    base.rule(
        "cyborg:device:enable",
        base.OPERATOR,
        "Put a device into service.",
        "POST /v2/devices/{uuid}/enable",
    ),
    base.rule(
        "cyborg:deployable:get_all",
        base.MANAGER_OR_ADMIN,
        "List deployables.",
        "GET /v2/deployables",
        older=base.ADMIN,
    ),
    base.rule(
        "cyborg:deployable:get_one",
        base.MANAGER_OR_ADMIN,
        "Show a deployable.",
        "GET /v2/deployables/{uuid}",
        older=base.ADMIN,
    ),
    base.rule(
        "cyborg:deployable:program",
        base.ADMIN,
        "Load an image from Glance into a deployable.",
        "PATCH /v2/deployables/{uuid}/program",
    ),
    base.rule(
        "cyborg:attribute:get_all",
        base.MANAGER_OR_ADMIN,
        "List the attributes of deployables.",
        "GET /v2/attributes",
        older=base.ADMIN,
    ),
    base.rule(
        "cyborg:attribute:get_one",
        base.MANAGER_OR_ADMIN,
        "Show an attribute of a deployable.",
        "GET /v2/attributes/{uuid}",
        older=base.ADMIN,
    ),
    base.rule(
        "cyborg:attribute:create",
        base.ADMIN,
        "Add an attribute to a deployable.",
        "POST /v2/attributes",
    ),
    base.rule(
        "cyborg:attribute:delete",
        base.ADMIN,
        "Delete an attribute of a deployable.",
        "DELETE /v2/attributes/{uuid}",
    ),
]
