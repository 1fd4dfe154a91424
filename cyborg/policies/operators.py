# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the operators' resources: what microversion 2.100 adds.

An attach gives an instance more than its flavor grants, so it is limited to operators until there
are quotas. A rule that allows it to members of a project applies to the instances of that project.
"""

from cyborg.policies import base

RULES = [
    base.rule(
        "cyborg:instance:attach",
        base.OPERATOR,
        "Attach accelerators to an existing instance.",
        "POST /v2/instances/{uuid}/accelerators",
    ),
    base.rule(
        "cyborg:instance:detach",
        base.OPERATOR,
        "Detach accelerators that were attached to an instance.",
        "DELETE /v2/instances/{uuid}/accelerators",
        "DELETE /v2/instances/{uuid}/accelerators/{arq}",
    ),
    base.rule(
        "cyborg:service:get_all",
        base.MANAGER_OR_OPERATOR,
        "List processes, and services on backends.",
        "GET /v2/services",
    ),
    base.rule(
        "cyborg:service:get_one",
        base.MANAGER_OR_OPERATOR,
        "Show a process, or a service on a backend.",
        "GET /v2/services/{uuid}",
    ),
    base.rule(
        "cyborg:service:discover",
        base.OPERATOR,
        "Discover the hardware of hosts now.",
        "POST /v2/services/discover",
    ),
    base.rule(
        "cyborg:service:update",
        base.OPERATOR,
        "Take a host out of service, or put it back into service. Show the servers that a drain "
        "of a host waits for.",
        "PATCH /v2/services/{uuid}",
        "GET /v2/services/{uuid}/drain",
    ),
    base.rule(
        "cyborg:service:delete",
        base.OPERATOR,
        "Delete a process that is down. For an agent, delete its host and all devices of the host.",
        "DELETE /v2/services/{uuid}",
    ),
    base.rule(
        "cyborg:backend:get_all",
        base.MANAGER_OR_OPERATOR,
        "List the backends of each host and driver.",
        "GET /v2/backends",
    ),
    base.rule(
        "cyborg:backend:get_one",
        base.MANAGER_OR_OPERATOR,
        "Show a backend.",
        "GET /v2/backends/{uuid}",
    ),
    base.rule(
        "cyborg:driver:get_all",
        base.MANAGER_OR_OPERATOR,
        "List the drivers of each host, including installed drivers that are not loaded.",
        "GET /v2/drivers",
    ),
    base.rule(
        "cyborg:driver:get_one",
        base.MANAGER_OR_OPERATOR,
        "Show a driver of a host.",
        "GET /v2/drivers/{uuid}",
    ),
    base.rule(
        "cyborg:driver:install",
        base.OPERATOR,
        "Load a driver on hosts, now and at each start of their agents.",
        "POST /v2/drivers",
    ),
    base.rule(
        "cyborg:driver:update",
        base.OPERATOR,
        "Update the options of a driver, or enable or disable it.",
        "PATCH /v2/drivers/{driver}",
    ),
    base.rule(
        "cyborg:driver:uninstall",
        base.OPERATOR,
        "Unload a driver from its hosts, and remove the devices that it offers.",
        "DELETE /v2/drivers/{driver}",
    ),
    base.rule(
        "cyborg:hardware:get_all",
        base.MANAGER_OR_OPERATOR,
        "List the hardware of hosts, offered or not.",
        "GET /v2/hardware",
    ),
    base.rule(
        "cyborg:hardware:get_one",
        base.MANAGER_OR_OPERATOR,
        "Show a piece of hardware.",
        "GET /v2/hardware/{uuid}",
    ),
    base.rule(
        "cyborg:operation:get_all",
        base.READER_OR_OPERATOR,
        "List the operations that were started in the caller's project, or, for operators, "
        "of all projects.",
        "GET /v2/operations",
    ),
    base.rule(
        "cyborg:operation:get_one",
        base.READER_OR_OPERATOR,
        "Show an operation.",
        "GET /v2/operations/{uuid}",
    ),
    base.rule(
        "cyborg:event:get_all",
        base.OPERATOR,
        "List events: the history of devices, hosts, instances and ARQs of all projects "
        "(from microversion 2.100).",
        "GET /v2/events",
    ),
    base.rule(
        "cyborg:limits:get",
        base.READER_OR_OPERATOR,
        "Show the limits and the usage of one's own project (from microversion 2.100).",
        "GET /v2/limits",
    ),
    base.rule(
        "cyborg:usage:get",
        base.READER_OR_OPERATOR,
        "Show how many units are used, free and out of service. Users who are not operators "
        "see the units of their own project only, without hosts.",
        "GET /v2/usage",
    ),
    base.rule(
        "cyborg:capacity:get",
        base.READER_OR_OPERATOR,
        "Show how many further instances of device profiles fit, and what limits them. Users who "
        "are not operators see whether the profiles that they may use can be satisfied.",
        "GET /v2/capacity",
    ),
]
