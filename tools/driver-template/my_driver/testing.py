# SPDX-License-Identifier: Apache-2.0
"""A simulated server with two Example cards, and what the contract tests must know about them."""

from cyborg.testing import servers
from cyborg.testing.driver_kit import DriverContract

IDLE = {"health": "ok", "scheduler": "shared", "mode": "host"}


def host():
    machine = servers.server()
    for address in ("0000:c1:00.0", "0000:c2:00.0"):
        path = servers.add_function(machine, address, "1d55:0001:120000", node=1)
        for file, text in IDLE.items():
            machine.add_file(f"{path}/{file}", text)
    return machine


class Contract(DriverContract):
    def break_device(self, host, key):
        host.add_file(f"{servers.place(key)}/health", "4 uncorrectable errors")

    def mend_device(self, host, key):
        host.add_file(f"{servers.place(key)}/health", IDLE["health"])
