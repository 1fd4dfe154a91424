# SPDX-License-Identifier: Apache-2.0
"""Load drivers by the names that the operator enabled; a bad name is a fact, not an end."""

import importlib
import importlib.metadata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from oslo_config import cfg
from stevedore import named

from cyborg import exception
from cyborg.drivers.base import Driver
from cyborg.drivers.host import Host
from cyborg.drivers.overlay import Overlay
from cyborg.model.report import DriverHello, DriverOption, DriverState

#: Where packages announce their drivers.
NAMESPACE = "cyborg.accelerator.driver"
#: The name that stands for every driver that is installed.
ALL = "*"

_VERSION_WIDTH = 64
_TYPE_WIDTH = 64
_ENDPOINT_WIDTH = 255
_HELP_WIDTH = 255


@dataclass(frozen=True)
class LoadResult:
    """What became of one name: a driver, or a clause that says why there is none.

    One that is not ``enabled`` offers nothing; it is there to tell what hardware it knows.
    ``endpoint`` is its entry point, ``version`` that of the package which brought it.
    """

    name: str
    driver: Driver | None = None
    error: str | None = None
    enabled: bool = True
    endpoint: str | None = None
    version: str | None = None
    #: What an operator may set of the driver; empty where it was not constructed from a file.
    accepts: tuple[DriverOption, ...] = ()

    @property
    def hello(self) -> DriverHello:
        """What the driver says to the agent: that it is here, and what it supports."""
        status = DriverState.READY if self.driver is not None else DriverState.FAILED
        kind = None if self.driver is None else self.driver.device_type
        return DriverHello(
            driver=self.name,
            status=status if self.enabled else DriverState.STOPPED,
            endpoint=self.endpoint,
            type=None if kind is None else kind[:_TYPE_WIDTH],
            version=self.version,
        )


def load(
    names: Iterable[str], host: Host, conf: cfg.ConfigOpts, namespace: str = NAMESPACE
) -> list[LoadResult]:
    """Load and construct the named drivers; one result for each name, doubles left out.

    ``*`` stands for all that are installed. Raises exception.ConfigError when an option of a driver
    that was named cannot be used: that is the operator's to put right before the agent reports
    anything. Whatever else goes wrong in a driver is in its result.
    """
    wanted = list(dict.fromkeys(names))
    named_ones = [one for one in wanted if one != ALL]
    found = [_load(name, host, conf, namespace) for name in named_ones]
    if ALL in wanted:
        others = sorted(_installed(namespace) - set(named_ones))
        found += [_tried(name, host, conf, namespace) for name in others]
    return [_described(one, namespace) for one in found]


def load_others(
    enabled: Collection[str], host: Host, conf: cfg.ConfigOpts, namespace: str = NAMESPACE
) -> list[LoadResult]:
    """Load all installed drivers but the enabled ones, by name; they offer nothing.

    An option that such a driver cannot use is no trouble but its own.
    """
    names = sorted(_installed(namespace) - set(enabled))
    found = [_tried(name, host, conf, namespace) for name in names]
    return [replace(_described(one, namespace), enabled=False) for one in found]


def _described(loaded: LoadResult, namespace: str) -> LoadResult:
    """The same with where it comes from, if it is installed at all."""
    for one in importlib.metadata.entry_points(group=namespace, name=loaded.name):
        version = None if one.dist is None else one.dist.version[:_VERSION_WIDTH]
        return replace(loaded, endpoint=one.value[:_ENDPOINT_WIDTH], version=version)
    return loaded


def _installed(namespace: str) -> set[str]:
    return {one.name for one in importlib.metadata.entry_points(group=namespace)}


def load_with(
    name: str,
    host: Host,
    conf: cfg.ConfigOpts,
    *,
    options: Mapping[str, str],
    namespace: str = NAMESPACE,
) -> LoadResult:
    """Load one driver with an operator's options laid over the configuration.

    Its package may have been installed since the process began. Whatever goes wrong is in the
    result: an option that cannot be used, that the driver does not have, or that is for the host
    alone to set.
    """
    importlib.invalidate_caches()
    overlay = Overlay(conf, options)
    loaded = _tried(name, host, cast(cfg.ConfigOpts, overlay), namespace)
    if loaded.driver is not None:
        loaded = next(
            (LoadResult(name, error=flaw) for flaw in _flaws(loaded.driver, overlay, options)),
            loaded,
        )
    return _described(loaded, namespace)


def _flaws(driver: Driver, overlay: Overlay, options: Iterable[str]) -> Iterator[str]:
    """Why a driver cannot have these options, though it was constructed with them."""
    for key in sorted(options):
        if key not in overlay.read:
            yield f"it has no option {key}"
        elif overlay.read[key] in driver.local_options:
            yield f"option {key} can be set in the host's own files only"


class _Installed(named.NamedExtensionManager[Driver]):
    """Looks at the packages that are there now; stevedore by itself looks once in a process."""

    def list_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """Those of the namespace, of packages that came in since the start as well."""
        return list(importlib.metadata.entry_points(group=self.namespace))


def _tried(name: str, host: Host, conf: cfg.ConfigOpts, namespace: str) -> LoadResult:
    """The same of a driver that nobody has named in a file: its options are its own trouble."""
    try:
        return _load(name, host, conf, namespace)
    except exception.ConfigError as error:
        return LoadResult(name, error=str(error))


def _load(name: str, host: Host, conf: cfg.ConfigOpts, namespace: str) -> LoadResult:
    faults: list[str] = []
    overlay = conf if isinstance(conf, Overlay) else Overlay(conf, {})

    def failed(
        _manager: object, _entry: importlib.metadata.EntryPoint, error: BaseException
    ) -> None:
        if isinstance(error, exception.ConfigError):
            raise error
        faults.append(f"{type(error).__name__}: {error}")

    try:
        found = _Installed(
            namespace,
            [name],
            invoke_on_load=True,
            invoke_args=(host, overlay),
            on_load_failure_callback=failed,
            on_missing_entrypoints_callback=None,
        )
    except AssertionError as error:
        # The one error that stevedore does not hand to the callback.
        return LoadResult(name, error=f"AssertionError: {error}")
    if faults:
        return LoadResult(name, error=faults[0])
    if not found.extensions:
        return LoadResult(name, error="no driver of this name is installed")
    driver = found.extensions[0].obj
    if not isinstance(driver, Driver):
        return LoadResult(name, error=f"{type(driver).__name__} is not a driver of this service")
    if driver.name != name:
        return LoadResult(name, error=f"the installed driver calls itself {driver.name!r}")
    return LoadResult(name, driver, accepts=_accepts(overlay, driver))


def _accepts(overlay: Overlay, driver: Driver) -> tuple[DriverOption, ...]:
    """What an operator may set of a driver: all that it reads, but for what is its host's alone."""
    return tuple(
        DriverOption(
            name=name,
            group=group,
            type=type(option.type).__name__.lower(),
            default=None if option.default is None else str(option.default),
            help=(option.help or "").partition(". ")[0].rstrip(".")[:_HELP_WIDTH],
        )
        for (group, name), option in sorted(overlay.accepted.items())
        if name not in driver.local_options
    )
