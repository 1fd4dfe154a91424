# SPDX-License-Identifier: Apache-2.0
"""The driver that a contract is about: its class, its options, and a host with its hardware."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import opts
from cyborg.drivers import loader
from cyborg.drivers.base import Driver
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.servers import bare

#: The name of the host, so that what a driver says of it is the same on every machine.
HOST = "compute-1"


@dataclass(frozen=True)
class Subject:
    """A driver by its entry point, and how its hosts are made."""

    name: str
    kind: type[Driver]
    conf: cfg.ConfigOpts
    make_host: Callable[[], FakeHost]

    def make_driver(self, host: FakeHost) -> Driver:
        """Return a new driver on this host."""
        return self.kind(host, self.conf)


def load(name: str, host: str | None, config: str | None) -> Subject:
    """Find the driver as an agent would.

    ``host`` is an archive (directory or tar.gz) or ``module:function``; without it the machine has
    nothing. ``config`` is a configuration file. Raises ValueError with a clause that says what
    cannot be used.
    """
    conf = read_configuration(config)
    make_host = _maker(host)
    try:
        (found,) = loader.load([name], make_host(), conf)
    except exception.ConfigError as error:
        raise ValueError(str(error)) from error
    if found.driver is None:
        raise ValueError(found.error)
    return Subject(name, type(found.driver), conf, make_host)


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
        raise ValueError(f"there is no host {host!r}: {error}") from error
    return make
