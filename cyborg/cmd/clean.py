# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --clean``: clean a device of this host that is listed and never offered.

The agent cleans the devices that it offers after each guest, and refuses them here.
"""

from collections.abc import Callable, Iterable
from typing import Final, TextIO

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import loader
from cyborg.drivers.base import Driver, clean_calls
from cyborg.drivers.host import Host
from cyborg.drivers.scan import Scan
from cyborg.model.work import HandleTask
from cyborg_cli.text import escaped

#: Loads the named drivers, see ``loader.load``.
Load = Callable[[Iterable[str], Host, cfg.ConfigOpts], list[loader.LoadResult]]

OPTIONS: Final = (
    cfg.StrOpt(
        "clean",
        metavar="DRIVER/DEVICE",
        help="Remove all data from a device that its driver lists and never offers, such as a disk "
        "of the nvmf_spdk_driver, and exit. Name the driver and the address in the list of "
        "hardware. A device that is in use is refused. The data cannot be recovered.",
    ),
)


def run(conf: cfg.ConfigOpts, host: Host, out: TextIO, *, load: Load = loader.load) -> int:
    """Clean the device that ``--clean`` names, and return the exit status.

    Raises exception.ConfigError if the option, or an option of the driver, cannot be used.
    """
    name, _, key = conf.clean.partition("/")
    if not name or not key:
        reason = f"Option --clean: {conf.clean!r} is not DRIVER/DEVICE."
        raise exception.ConfigError(reason=reason)
    (loaded,) = load([name], host, conf)
    if loaded.driver is None:
        raise exception.ConfigError(reason=f"Option --clean: driver {name!r}: {loaded.error}.")
    if loaded.driver.offers_devices:
        reason = f"Option --clean: the agent cleans the devices of {name} itself, after each guest."
        raise exception.ConfigError(reason=reason)
    try:
        clean(loaded.driver, key, out)
    except exception.CyborgError as error:
        print(f"{escaped(key)} is not clean: {escaped(str(error))}", file=out)
        return 1
    print(f"{escaped(key)} is clean.", file=out)
    return 0


def clean(driver: Driver, key: str, out: TextIO) -> None:
    """Run all clean steps of a device in their order, and print what they do.

    The first step that fails ends the work: its error is raised. Raises exception.DriverFailed
    for a device that the driver does not list, that it offers, or that it cannot clean.
    """
    entries = [entry for entry in driver.hardware(Scan(driver.host)) if entry.key == key]
    if not entries:
        raise _refused(driver, f"it does not list {key}")
    if any(entry.offered for entry in entries):
        raise _refused(driver, f"it offers {key}; the agent cleans it after each guest")
    steps = clean_calls(driver, HandleTask("clean", driver.name, key, key, key, ""))
    if not steps:
        raise _refused(driver, f"it has no way to clean {key}")

    def show(done: float, step: str) -> None:
        print(f"{done:.0%}: {escaped(step)}", file=out, flush=True)

    for step, call in steps:
        print(escaped(step.name), file=out, flush=True)
        call(show)


def _refused(driver: Driver, reason: str) -> exception.DriverFailed:
    return exception.DriverFailed(driver=driver.name, verb="clean", reason=reason)
