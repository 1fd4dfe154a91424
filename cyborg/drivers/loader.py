# SPDX-License-Identifier: Apache-2.0
"""Load drivers by the names that the operator enabled; a bad name is a fact, not an end."""

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass

from oslo_config import cfg
from stevedore import named

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.host import Host

#: Where packages announce their drivers.
NAMESPACE = "cyborg.accelerator.driver"


@dataclass(frozen=True)
class Loaded:
    """What became of one name: a driver, or a clause that says why there is none."""

    name: str
    driver: Driver | None = None
    error: str | None = None


def load(
    names: Iterable[str], host: Host, conf: cfg.ConfigOpts, namespace: str = NAMESPACE
) -> list[Loaded]:
    """Load and construct the named drivers; one result for each name, doubles left out.

    Raises exception.ConfigError when an option of a driver cannot be used: that is the operator's
    to put right before the agent reports anything. Whatever else goes wrong in a driver is in
    its result.
    """
    return [_load(name, host, conf, namespace) for name in dict.fromkeys(names)]


def _load(name: str, host: Host, conf: cfg.ConfigOpts, namespace: str) -> Loaded:
    faults: list[str] = []

    def failed(
        _manager: object, _entry: importlib.metadata.EntryPoint, error: BaseException
    ) -> None:
        if isinstance(error, exception.ConfigError):
            raise error
        faults.append(f"{type(error).__name__}: {error}")

    try:
        found = named.NamedExtensionManager[Driver](
            namespace,
            [name],
            invoke_on_load=True,
            invoke_args=(host, conf),
            on_load_failure_callback=failed,
            on_missing_entrypoints_callback=None,
        )
    except AssertionError as error:
        # The one error that stevedore does not hand to the callback.
        return Loaded(name, error=f"AssertionError: {error}")
    if faults:
        return Loaded(name, error=faults[0])
    if not found.extensions:
        return Loaded(name, error="no driver of this name is installed")
    driver = found.extensions[0].obj
    if not isinstance(driver, Driver):
        return Loaded(name, error=f"{type(driver).__name__} is not a driver of this service")
    if driver.name != name:
        return Loaded(name, error=f"the installed driver calls itself {driver.name!r}")
    return Loaded(name, driver)
