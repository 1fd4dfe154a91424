# SPDX-License-Identifier: Apache-2.0
"""The driver that a contract is about: its class, its options, and a host with its hardware."""

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import opts
from cyborg.drivers import loader
from cyborg.drivers.base import Driver
from cyborg.testing import scenario_file, scenario_hosts
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.scenario_file import Scenario
from cyborg.testing.servers import bare

#: The name of the host, so that what a driver says of it is the same on every machine.
HOST = "compute-1"
#: What stands for all scenario hosts that name the driver.
SCENARIOS = "scenarios"


@dataclass(frozen=True)
class Subject:
    """A driver by its entry point, and how its hosts are made; ``host`` names them.

    ``limits`` are those of the contract that belong to this host (see ``DriverSetup``). With
    ``absent`` the hosts have no device for the driver.
    """

    name: str
    kind: type[Driver]
    conf: cfg.ConfigOpts
    make_host: Callable[[], FakeHost]
    host: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    absent: bool = False

    def make_driver(self, host: FakeHost) -> Driver:
        """Return a new driver on this host."""
        return self.kind(host, self.conf)


def load_all(name: str, hosts: Sequence[str], config: str | None) -> list[Subject]:
    """Find the driver once for each of the hosts, or once without hardware if there are none.

    ``scenarios`` stands for all scenario hosts that name the driver. Raises ValueError as ``load``.
    """
    known = {scenario: scenario_hosts.read(scenario) for scenario in scenario_hosts.names()}
    named = [key for key, scenario in known.items() if _entries(scenario, name)]
    if SCENARIOS in hosts and not named:
        raise ValueError(f"no scenario host names {name}")
    expanded = [one for host in hosts for one in (named if host == SCENARIOS else [host])]
    return [load(name, host, config) for host in dict.fromkeys(expanded)] or [
        load(name, None, config)
    ]


def load(name: str, host: str | None, config: str | None) -> Subject:
    """Find the driver as an agent would.

    ``host`` is an archive (directory or tar.gz), the name of a scenario host, a file of one or
    ``module:function``; without it the machine has nothing. ``config`` is a configuration file;
    without it the options are those that a scenario host has for the driver. Raises ValueError with
    a clause that says what cannot be used.
    """
    scenario = _scenario(host)
    entries = [] if scenario is None else _entries(scenario, name)
    selects_by_address = config is None and any(entry.selects_by_address for entry in entries)
    if config is None and entries:
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(entries[0].options)
            file.flush()
            conf = read_configuration(file.name)
    else:
        conf = read_configuration(config)
    make_host = scenario_hosts.build(scenario).copy if scenario is not None else _maker(host)
    try:
        (found,) = loader.load([name], make_host(), conf)
    except exception.ConfigError as error:
        raise ValueError(str(error)) from error
    if found.driver is None:
        raise ValueError(found.error)
    limits = {"selects_by_address": True} if selects_by_address else {}
    return Subject(name, type(found.driver), conf, make_host, host or "", limits)


def _entries(scenario: Scenario, driver: str) -> list[scenario_file.CyborgDriver]:
    return [entry for entry in scenario.drivers if entry.name == driver]


def _scenario(host: str | None) -> Scenario | None:
    """Return the scenario that a text names; None if it names another kind of host."""
    if host is None:
        return None
    if host in scenario_hosts.names():
        return scenario_hosts.read(host)
    file = Path(host)
    return scenario_file.read(file) if file.suffix == ".yaml" and file.is_file() else None


def read_configuration(config: str | None) -> cfg.ConfigOpts:
    """Return the configuration of a host with the options of one file, or of none.

    Raises ValueError with a clause that says what cannot be used.
    """
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf.set_default("host", HOST)
    try:
        conf(
            [],
            project="cyborg",
            default_config_files=[config] if config else [],
            default_config_dirs=[],
        )
    except cfg.Error as error:
        raise ValueError(str(error)) from error
    return conf


def _maker(host: str | None) -> Callable[[], FakeHost]:
    if host is None:
        return bare
    if Path(host).exists():
        return FakeHost.recorded(Path(host)).copy
    module, _, function = host.partition(":")
    try:
        make: Callable[[], FakeHost] = getattr(importlib.import_module(module), function)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f"there is no host {host!r}: {error}; the scenario hosts are "
            f"{', '.join(scenario_hosts.names())}"
        ) from error
    return make
