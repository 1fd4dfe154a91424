# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --list-functions``: list the functions that privileged actions may change.

Root runs the command. The list is made of the configuration files alone, which only root may be
able to change: neither the conductor nor the state of the agent has a say.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import generic
from cyborg.conf.agent import PRIVILEGED_FUNCTIONS
from cyborg.drivers import archive, loader, whitelist
from cyborg.drivers.host import Host, LocalHost
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.privileged.guard import read_list
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress, deployable_name
from cyborg_cli.text import escaped

#: The path that stands for the standard output.
_OUTPUT: Final = "-"
OPTIONS: Final = (
    cfg.StrOpt(
        "list-functions",
        metavar="FILE",
        help="Write the list of the PCI functions that cyborg-privileged may change, and exit; - "
        "prints the list. Root runs this after each change of the whitelist, of the sections of "
        f"drivers and of the cards of the host, with {PRIVILEGED_FUNCTIONS} as FILE. The list has "
        "the functions of the drivers in [agent] enabled_drivers and of those that --driver names. "
        "The configuration files must be files that only root can change.",
    ),
)
_HEAD: Final = """\
# The PCI functions that cyborg-privileged may change, with their virtual functions.
# Made by cyborg-agent --list-functions from the configuration: change that, and make it again.
"""


def run(conf: cfg.ConfigOpts, out: TextIO) -> int:
    """Write the list that ``--list-functions`` names; return the exit status.

    The list leaves out a driver that fails, and the exit status is 1. Raises exception.ConfigError
    if the configuration cannot be used, or if others than root can change it, and if the functions
    cannot be read or the list cannot be written.
    """
    machine = LocalHost()
    _check_configuration(conf, machine)
    host: Host = machine
    if conf.discover_host is not None:
        host = archive.read(Path(conf.discover_host))
    names = [*conf.agent.enabled_drivers, *conf.discover_drivers]
    path: str = conf.list_functions
    former = [] if path == _OUTPUT else _former(machine, path)
    failures: dict[str, str] = {}
    try:
        loaded = loader.load(names, host, conf)
        functions = find(loaded, host, conf.host, former, failures=failures)
        text = f"{_HEAD}{''.join(map(_line, functions))}"
        if path == _OUTPUT:
            print(text, end="", file=out, flush=True)
        else:
            _write(Path(path), text)
            print(f"{len(functions)} function(s) listed in {path}.", file=out)
    except exception.HostError as error:
        raise exception.ConfigError(reason=f"Option --list-functions: {error}.") from error
    for name, reason in failures.items():
        print(f"The list has no functions of {name}: {escaped(reason)}.", file=sys.stderr)
    return int(bool(failures))


def find(
    loaded: Iterable[LoadResult],
    host: Host,
    node: str,
    former: Sequence[whitelist.Entry],
    *,
    failures: dict[str, str],
) -> list[PciFunction]:
    """Return the functions of these drivers on a host, ordered by address.

    A function that a guest has is not found by the name of its interface, nor by its directory in
    ``/sys/class``: it is one if ``former``, the entries of the former list, has it. A virtual
    function is left out if the list has its card. ``failures`` gets the drivers that cannot tell
    theirs, with the reason. Raises exception.HostError if the bus cannot be read.
    """
    bus = Scan(host).functions
    kept = {
        deployable_name(node, address)
        for address, function in bus.items()
        if any(entry.matches(function, {}, managed=False) for entry in former)
    }
    scan = Scan(host, managed_deployables=kept)
    addresses: set[PciAddress] = set()
    for result in loaded:
        if result.driver is None:
            failures[result.name] = str(result.error)
            continue
        try:
            addresses |= set(result.driver.functions(scan))
        except Exception as error:  # noqa: BLE001
            # Drivers are foreign code.
            failures[result.name] = str(error) or type(error).__name__
    functions = [bus[address] for address in sorted(addresses & bus.keys())]
    return [function for function in functions if function.parent not in addresses]


def _line(function: PciFunction) -> str:
    """Return the entry of a function; another card that gets its address does not match."""
    entry = {"address": str(function.address), "vendor_id": f"{function.vendor:04x}"}
    return f"{json.dumps(entry)}\n"


def _former(machine: Host, path: str) -> Sequence[whitelist.Entry]:
    """Return the entries of the list so far, none if there is none that can be used."""
    try:
        return read_list(machine, path)
    except exception.CyborgError:
        return ()


def _check_configuration(conf: cfg.ConfigOpts, machine: Host) -> None:
    """Raise exception.ConfigError if others than root can change what the list is made of."""
    for path in _sources(conf):
        try:
            place = machine.writable_by_others(path)
        except exception.HostError as error:
            raise exception.ConfigError(reason=f"{error}.") from error
        if place is not None:
            reason = (
                f"Option --list-functions: others than root can change {escaped(place)}, and with "
                "it the functions that privileged actions change; let it belong to root"
            )
            raise exception.ConfigError(reason=f"{reason}.")


def _sources(conf: cfg.ConfigOpts) -> Iterator[str]:
    """Yield the files of the configuration, and those of the device catalogue of the operator."""
    for file in conf.config_file or ():
        yield os.path.abspath(file)
    directories = [(Path(directory), "*.conf") for directory in conf.config_dir or ()]
    directories.append((Path(conf[generic.GROUP].devices_dir), "*.yaml"))
    for directory, pattern in directories:
        if directory.is_dir():
            yield os.path.abspath(directory)
            yield from map(os.path.abspath, sorted(directory.glob(pattern)))


def _write(path: Path, text: str) -> None:
    """Replace the list in one step; every user may read it."""
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(
                tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False)
            )
            stack.callback(Path(file.name).unlink, missing_ok=True)
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
            Path(file.name).replace(path)
    except OSError as error:
        raise exception.HostError(
            action=f"writing {path}", reason=error.strerror or str(error), errno=error.errno
        ) from error
