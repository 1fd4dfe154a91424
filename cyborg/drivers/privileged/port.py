# SPDX-License-Identifier: Apache-2.0
"""The port through which hosts have privileged actions carried out."""

from typing import Protocol

from cyborg import exception
from cyborg.drivers.privileged.action import Action, T


class Privileged(Protocol):
    """What can run actions: the agent's client, and the simulated host."""

    def run(self, action: Action[T]) -> T:
        """Carry the action out and return its result.

        Raises exception.HostError when the host refuses it, with ``errno`` if the kernel did.
        """
        ...


class NoPrivileges:
    """The actions of a host without a privileged process: all fail."""

    def run(self, action: Action[T]) -> T:
        """Raise exception.HostError."""
        raise exception.HostError(
            action=str(action), reason="this program has no privileged process"
        )
