# SPDX-License-Identifier: Apache-2.0
"""Load drivers by name; the result of a driver that cannot be loaded holds the error.

stevedore loads the drivers. It keeps its list of the installed packages for the life of the
process, and in a file below ``$XDG_CACHE_HOME`` or ``~/.cache`` (``python-entrypoints``), whose
name depends on the time stamps of the packages. It writes no file if the directory cannot be
written or has a file ``.disable``. Its list has no versions and no package that was installed
since, so each function here looks at the packages with importlib.metadata, once.
"""

import importlib
import importlib.metadata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import stevedore
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import health_policy
from cyborg.drivers.base import Driver
from cyborg.drivers.host import Host
from cyborg.model.report import DriverOption, DriverState, InstalledDriver

#: The entry point group in which packages register their drivers.
NAMESPACE = "cyborg.accelerator.driver"
#: The name that stands for all installed drivers.
ALL = "*"

#: The installed drivers by name.
_Installed: TypeAlias = Mapping[str, importlib.metadata.EntryPoint]

_VERSION_WIDTH = 64
_TYPE_WIDTH = 64
_ENDPOINT_WIDTH = 255
_HELP_WIDTH = 255


@dataclass(frozen=True)
class LoadResult:
    """The result of loading one driver: the driver, or a clause that says why it is not loaded.

    A driver that is not ``enabled`` offers no devices; it only lists the hardware that it supports.
    ``endpoint`` is its entry point, ``version`` the version of its package.
    """

    name: str
    driver: Driver | None = None
    error: str | None = None
    enabled: bool = True
    endpoint: str | None = None
    version: str | None = None
    #: The options that REST requests may set, None if the driver does not tell. The group is empty
    #: for an option that the driver has not read, for example because it belongs to sections that
    #: the host does not have.
    accepts: tuple[DriverOption, ...] | None = None
    #: The requested options that only the files of the host may set: the driver has not read them.
    ignored: tuple[str, ...] = ()

    @property
    def installed(self) -> InstalledDriver:
        """Return what the agent reports about the driver: state, type, entry point, version."""
        status = DriverState.READY if self.driver is not None else DriverState.FAILED
        kind = None if self.driver is None else self.driver.device_type
        return InstalledDriver(
            driver=self.name,
            status=status if self.enabled else DriverState.STOPPED,
            endpoint=self.endpoint,
            type=None if kind is None else kind[:_TYPE_WIDTH],
            version=self.version,
        )


class Overlay:
    """Replaces ``conf`` while a driver is constructed, which reads its options once.

    A key of ``options`` is ``group.option``, or ``option`` for every group in which the driver
    reads it; options of [DEFAULT] always come from the host. Values are text as in a configuration
    file, with the same validation: reading an invalid value raises ConfigError with the option.
    ``permit`` must be called first: without it, no key has an effect.
    """

    def __init__(self, conf: cfg.ConfigOpts, options: Mapping[str, str]) -> None:
        self._conf = conf
        self._requested = options
        self._options: Mapping[str, str] = {}
        #: Keys of the options that the driver has read.
        self.read_keys: set[str] = set()
        self._permitted: Collection[str] | None = None
        #: All options that the driver has read: (group, name) → option.
        self._read: dict[tuple[str, str], cfg.Opt] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._conf, name)
        return _Group(self, name) if isinstance(value, cfg.ConfigOpts.GroupAttr) else value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._conf

    def permit(self, names: Collection[str]) -> None:
        """Let these options be set, whatever their group."""
        self._permitted = names
        self._options = {
            key: value for key, value in self._requested.items() if option_name(key) in names
        }

    @property
    def accepts(self) -> tuple[DriverOption, ...] | None:
        """Return the options that can be set; see ``LoadResult``."""
        if self._permitted is None:
            return None
        read = [
            DriverOption(
                name=name,
                group=group,
                type=type(option.type).__name__.lower(),
                default=None if option.default is None else str(option.default),
                help=(option.help or "").partition(". ")[0].rstrip(".")[:_HELP_WIDTH],
            )
            for (group, name), option in sorted(self._read.items())
            if name in self._permitted
        ]
        unread = sorted(set(self._permitted) - {option.name for option in read})
        return (*read, *(DriverOption(name, "", "string") for name in unread))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the keys without effect, because they must not be set in this way."""
        return tuple(sorted(self._requested.keys() - self._options.keys()))

    @property
    def unread(self) -> list[str]:
        """Return the other keys that the driver has not read."""
        return sorted(self._options.keys() - self.read_keys)

    def get_location(self, name: str, group: str) -> cfg.LocationInfo | None:
        """Return where the value of an option comes from; an operator's value is an override."""
        if f"{group}.{name}" in self._options or name in self._options:
            return cfg.LocationInfo(cfg.Locations.set_override, "REST")
        return self._conf.get_location(name, group)

    def value(self, group: str, name: str) -> Any:
        """Return the value of an option in a group; the operator's value has precedence."""
        if name in self._conf[group]:
            # oslo.config has no public method that returns an option.
            self._read[group, name] = self._conf._get_opt_info(name, group)["opt"]
        for key in (f"{group}.{name}", name):
            if key in self._options:
                self.read_keys.add(key)
                option, raw = self._conf._get_opt_info(name, group)["opt"], self._options[key]
                try:
                    value = option.type(raw)
                except ValueError as error:
                    raise exception.ConfigError(reason=f"option {key} = {raw}: {error}") from None
                return [value] if option.multi else value
        return self._conf[group][name]


class _Group:
    """The options of one group of an overlay."""

    def __init__(self, overlay: Overlay, name: str) -> None:
        self._overlay = overlay
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return self._overlay.value(self._name, name)

    def __getitem__(self, name: str) -> Any:
        return self._overlay.value(self._name, name)


def option_name(key: str) -> str:
    """Return the name of the option in a key ``group.option`` or ``option``."""
    return key.rpartition(".")[2]


def remote_options(name: str, namespace: str = NAMESPACE) -> frozenset[str] | None:
    """Return ``Driver.remote_options`` of a driver, None if it cannot be imported here."""
    entry = _installed(namespace).get(name)
    if entry is None:
        return None
    try:
        return frozenset(_factory(entry).remote_options)
    except (Exception, SystemExit):  # noqa: BLE001
        # Drivers are foreign code.
        return None


def load(
    names: Iterable[str], host: Host, conf: cfg.ConfigOpts, namespace: str = NAMESPACE
) -> list[LoadResult]:
    """Load and construct the named drivers; return one result per distinct name.

    ``*`` stands for all installed drivers. Raises exception.ConfigError when an option of an
    explicitly named driver is not valid: the operator must correct it before the agent reports
    anything. All other errors of a driver are in its result.
    """
    requested = list(dict.fromkeys(names))
    explicit = [name for name in requested if name != ALL]
    installed = _installed(namespace)
    results = [_load(name, host, conf, installed) for name in explicit]
    if ALL in requested:
        others = sorted(installed.keys() - set(explicit))
        results += [_load_with_config_errors(name, host, conf, installed) for name in others]
    return results


def load_disabled(
    enabled: Collection[str], host: Host, conf: cfg.ConfigOpts, namespace: str = NAMESPACE
) -> list[LoadResult]:
    """Load all installed drivers that are not in ``enabled``; they offer no devices.

    An option of such a driver that is not valid is an error in its result.
    """
    installed = _installed(namespace)
    names = sorted(installed.keys() - set(enabled))
    results = [_load_with_config_errors(name, host, conf, installed) for name in names]
    return [replace(result, enabled=False) for result in results]


def _installed(namespace: str) -> _Installed:
    """Return the entry points by name; to look at all packages takes some 60 ms."""
    entries = reversed([*importlib.metadata.entry_points(group=namespace)])
    return {entry.name: entry for entry in entries}


def _factory(entry: importlib.metadata.EntryPoint) -> Any:
    """Return what the entry point of an installed driver names. Raises what its import raises.

    stevedore loads it, unless its list has the name more than once, or differs from what is
    installed now: the package was installed or replaced since.
    """
    listed = stevedore.NamedExtensionManager(entry.group, names=[]).list_entry_points()
    if [other for other in listed if other.name == entry.name] == [entry]:
        return stevedore.DriverManager(entry.group, entry.name).driver
    return entry.load()


def load_with_options(
    name: str,
    host: Host,
    conf: cfg.ConfigOpts,
    *,
    options: Mapping[str, str],
    namespace: str = NAMESPACE,
) -> LoadResult:
    """Load one driver with an operator's options, which override the configuration.

    The package of the driver may have been installed after the process started. All errors are in
    the result, also those of an option: its value is not valid, or the driver does not have it.
    Options that are not in ``Driver.remote_options`` have no effect; the result names them.
    """
    importlib.invalidate_caches()
    overlay = Overlay(conf, options)
    installed = _installed(namespace)
    result = _load_with_config_errors(name, host, cast(cfg.ConfigOpts, overlay), installed)
    if result.driver is not None and overlay.unread:
        result = replace(result, driver=None, error=f"it has no option {overlay.unread[0]}")
    return replace(result, ignored=overlay.ignored)


def _load_with_config_errors(
    name: str, host: Host, conf: cfg.ConfigOpts, installed: _Installed
) -> LoadResult:
    """Load a driver like ``_load``, but return a ConfigError in the result."""
    overlay = conf if isinstance(conf, Overlay) else Overlay(conf, {})
    try:
        return _load(name, host, cast(cfg.ConfigOpts, overlay), installed)
    except exception.ConfigError as error:
        return replace(_not_loaded(installed[name]), error=str(error), accepts=overlay.accepts)


def _not_loaded(entry: importlib.metadata.EntryPoint) -> LoadResult:
    """Return the result of an installed driver before it is loaded."""
    version = None if entry.dist is None else entry.dist.version[:_VERSION_WIDTH]
    return LoadResult(entry.name, endpoint=entry.value[:_ENDPOINT_WIDTH], version=version)


def _load(name: str, host: Host, conf: cfg.ConfigOpts, installed: _Installed) -> LoadResult:
    overlay = conf if isinstance(conf, Overlay) else Overlay(conf, {})
    if name not in installed:
        return LoadResult(name, error="no driver of this name is installed")
    result = _not_loaded(installed[name])
    try:
        factory = _factory(installed[name])
        permitted: frozenset[str] = getattr(factory, "remote_options", frozenset())
        overlay.permit(permitted)
        driver = factory(host, overlay)
    except exception.ConfigError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001
        # Drivers are foreign code.
        text = f"{type(error).__name__}: {error}"
        return replace(result, error=text, accepts=overlay.accepts)
    if not isinstance(driver, Driver):
        return replace(result, error=f"{type(driver).__name__} is not a driver of this service")
    if driver.name != name:
        return replace(result, error=f"the installed driver calls itself {driver.name!r}")
    try:
        health_policy.shipped().with_entries(driver.health_entries)
    except exception.ConfigError as error:
        # The operator cannot correct the files of a package.
        return replace(result, error=str(error), accepts=overlay.accepts)
    return replace(result, driver=driver, accepts=overlay.accepts)
