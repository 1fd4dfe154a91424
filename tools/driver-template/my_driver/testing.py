# SPDX-License-Identifier: Apache-2.0
"""A simulated server with two Example cards and other hardware."""

from cyborg.testing import servers


def host():
    machine = servers.server()
    for address in ("0000:c1:00.0", "0000:c2:00.0"):
        servers.add_function(machine, address, "1d55:0001:120000", node=1)
    return machine
