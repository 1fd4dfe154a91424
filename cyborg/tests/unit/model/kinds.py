# SPDX-License-Identifier: Apache-2.0
"""The words that name values and errors on the message bus, as other releases know them.

A word stays when its class is renamed. A new class adds its word here.
"""

import ast
import inspect
import textwrap

#: The ``KIND`` of every dataclass that has an envelope: on the bus or in rows of the database.
VALUES = frozenset(
    (
        "Acknowledged",
        "Arq",
        "Attribute",
        "Backend",
        "Binding",
        "Caller",
        "Creation",
        "Desired",
        "Device",
        "DeviceProfile",
        "Discovered",
        "DiscoveryTask",
        "HandleTask",
        "Hardware",
        "HostGuests",
        "HealthOrder",
        "AgentHeartbeat",
        "UnitUses",
        "ImageOrder",
        "InstallTask",
        "Operation",
        "Outcome",
        "Plan",
        "ProfileChange",
        "ProgramTask",
        "Reading",
        "Report",
        "HeartbeatReply",
    )
)

#: The ``kind`` of every class of cyborg.exception.
ERRORS = frozenset(
    (
        "BadState",
        "BoundArqs",
        "CannotAttach",
        "CannotProgram",
        "ConfigError",
        "Conflict",
        "CyborgError",
        "DatabaseUnavailable",
        "DeviceInUse",
        "DeviceUnavailable",
        "DriverCannot",
        "DriverFailed",
        "Duplicate",
        "Forbidden",
        "HostError",
        "ImageRefused",
        "InstanceAlreadyBound",
        "Invalid",
        "Locked",
        "NoAnswer",
        "NoFreeHandle",
        "NotAcceptable",
        "NotFound",
        "OperationTaken",
        "OutcomeUnknown",
        "OverLimit",
        "PeerFault",
        "PinnedVersion",
        "ProfileInUse",
        "SchemaError",
        "ServiceTokenRequired",
        "StaleEpoch",
        "Unavailable",
        "UnknownVerb",
    )
)


def declared(cls: type, name: str) -> object:
    """Return the literal that the body of a class itself assigns to a name; None without one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            return node.value.value if isinstance(node.value, ast.Constant) else None
    return None
