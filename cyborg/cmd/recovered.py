# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --recovered``: tell the agent of this host that a device has recovered."""

from pathlib import Path
from typing import Final, TextIO

from oslo_config import cfg

from cyborg import exception
from cyborg.agent.lasting_settings import LastingSettings
from cyborg.agent.state_store import LastingFaults, StateStore
from cyborg.drivers.worker import Worker
from cyborg_cli.text import escaped

OPTIONS: Final = (
    cfg.StrOpt(
        "recovered",
        metavar="DRIVER/DEVICE",
        help="Have the agent of this host forget the lasting faults of a device, and its recorded "
        "settings such as the version of its firmware, and exit. Use the option after you have "
        "reset, repaired or updated the device in a way that the agent cannot see. Name the driver "
        "and the address of the device.",
    ),
)


def run(conf: cfg.ConfigOpts, out: TextIO) -> int:
    """Mark the device that ``--recovered`` names, and return the exit status.

    Raises exception.ConfigError if the option does not name a device.
    """
    driver, _, key = conf.recovered.partition("/")
    if not driver or not key:
        reason = f"Option --recovered: {conf.recovered!r} is not DRIVER/DEVICE."
        raise exception.ConfigError(reason=reason)
    store = StateStore(Path(conf.state_path), conf.host)
    settings = LastingSettings(store, Worker())
    if not (LastingFaults(store).mark_recovered((driver, key)) and settings.forget(driver, key)):
        print(f"{escaped(str(store.path))} cannot be written.", file=out)
        return 1
    print(
        f"The agent forgets the faults of {escaped(key)} at its next check, and accepts its "
        "settings as they are.",
        file=out,
    )
    return 0
