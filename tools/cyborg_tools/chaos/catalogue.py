# SPDX-License-Identifier: Apache-2.0
"""The list of faults, in the order in which they are injected."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A fault: its name on the command line, and a description.

    ``short`` faults are those of ``--short``.
    """

    name: str
    title: str
    short: bool = False


CATALOGUE = (
    Fault("conductor-kill", "kill -9 of the conductor that is in the middle of a bind", short=True),
    Fault("conductors-kill", "kill -9 of both conductors in mid-bind; only one comes back"),
    Fault("conductor-stop", "SIGSTOP of the conductor in mid-bind beyond its lease", short=True),
    Fault("agent-kill", "kill -9 of the agent while it prepares a device", short=True),
    Fault("agent-stop", "SIGSTOP of the agent while it prepares a device"),
    Fault("api-kill", "kill -9 of one of two APIs"),
    Fault("api-stop", "SIGSTOP of one of two APIs"),
    Fault("rabbit-restart", "restart of RabbitMQ", short=True),
    Fault("rabbit-kill", "kill -9 and start of RabbitMQ"),
    Fault("mariadb-restart", "restart of MariaDB", short=True),
    Fault("mariadb-kill", "kill -9 and start of MariaDB"),
    Fault("placement-500", "Placement answers 500 to everything", short=True),
    Fault("placement-409", "Placement answers 409 to every write"),
    Fault("nova-silent", "nova-api takes requests and does not answer", short=True),
    Fault("nova-503", "nova-api answers 503 to everything"),
    Fault("disk-full", "the disk under the agent's state_path is full, and the agent is killed"),
)
NAMES = tuple(one.name for one in CATALOGUE)

#: The faults of ``--night``, in the order in which they are injected.
NIGHT = (
    Fault("night-start", "RabbitMQ refuses all daemons at their start: the password is wrong"),
    Fault("night-permission", "RabbitMQ withdraws the permissions of the running daemons"),
    Fault("night-bus", "RabbitMQ is stopped"),
    Fault("night-database", "MariaDB is stopped"),
    Fault("night-keystone", "Keystone refuses connections"),
    Fault("night-placement", "Placement answers 503 to everything"),
    Fault("night-conductor", "kill -9 of the conductor that is in the middle of a bind"),
    Fault("night-disk", "the disk under the agent's state_path is full, and the agent is killed"),
)
NIGHT_NAMES = tuple(one.name for one in NIGHT)
