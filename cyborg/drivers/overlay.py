# SPDX-License-Identifier: Apache-2.0
"""The configuration of one driver: an operator's options override those of the host's files."""

from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from cyborg import exception


class Overlay:
    """Replaces ``conf`` while a driver is constructed, which reads its options once.

    A key of ``options`` is ``group.option``, or ``option`` for every group in which the driver
    reads it; options of [DEFAULT] always come from the host. Values are text as in a configuration
    file, with the same validation: reading an invalid value raises ConfigError with the option.
    """

    def __init__(self, conf: cfg.ConfigOpts, options: Mapping[str, str]) -> None:
        self._conf = conf
        self._options = options
        #: Keys of ``options`` that the driver has read → names of the options.
        self.read_keys: dict[str, str] = {}
        #: All options that the driver has read: (group, name) → option.
        self.accepted: dict[tuple[str, str], cfg.Opt] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._conf, name)
        return _Group(self, name) if isinstance(value, cfg.ConfigOpts.GroupAttr) else value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._conf

    def value(self, group: str, name: str) -> Any:
        """Return the value of an option in a group; the operator's value has precedence."""
        if name in self._conf[group]:
            # oslo.config has no public method that returns an option.
            self.accepted[group, name] = self._conf._get_opt_info(name, group)["opt"]
        for key in (f"{group}.{name}", name):
            if key in self._options:
                self.read_keys[key] = name
                return self._parse(group, name, key)
        return self._conf[group][name]

    def _parse(self, group: str, name: str, key: str) -> Any:
        raw = self._options[key]
        option = self._conf._get_opt_info(name, group)["opt"]
        try:
            value = option.type(raw)
        except ValueError as error:
            raise exception.ConfigError(reason=f"option {key} = {raw}: {error}") from None
        return [value] if option.multi else value


class _Group:
    """The options of one group of an overlay."""

    def __init__(self, overlay: Overlay, name: str) -> None:
        self._overlay = overlay
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return self._overlay.value(self._name, name)

    def __getitem__(self, name: str) -> Any:
        return self._overlay.value(self._name, name)
