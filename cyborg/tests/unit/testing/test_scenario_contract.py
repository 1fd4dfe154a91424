# SPDX-License-Identifier: Apache-2.0
"""The contract of drivers for the drivers of this package, on scenario hosts."""

from cyborg.testing import driver_suite, subject

#: The scenario hosts of each driver: of different kinds, because each run takes seconds.
HOSTS = {
    "pci_driver": ("dgx-h100", "mi300x", "e810", "mixed"),
    "generic_driver": ("gaudi3", "alveo-u250", "n6001", "qat-4xxx"),
}

# With less chance, which the tests of each driver have in full.
globals().update(
    driver_suite.contracts(
        [subject.load(driver, host, None) for driver, hosts in HOSTS.items() for host in hosts],
        rounds=10,
        moments=10,
    )
)
