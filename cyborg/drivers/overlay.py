# SPDX-License-Identifier: Apache-2.0
"""The configuration as one driver sees it: an operator's options laid over the host's own."""

from collections.abc import Mapping
from typing import Any

from oslo_config import cfg

from cyborg import exception


class Overlay:
    """Stands for ``conf`` while a driver is constructed, which reads its options once.

    A key is ``group.option``, or ``option`` for every group that the driver reads it in; options
    of [DEFAULT] are the host's. Values are text in the form in which a file would have them, and
    are as strictly judged: a read raises ConfigError naming the option.
    """

    def __init__(self, conf: cfg.ConfigOpts, options: Mapping[str, str]) -> None:
        self._conf = conf
        self._options = options
        #: Keys that the driver has read, and by which names of options.
        self.read: dict[str, str] = {}
        #: All that the driver has read: (group, name) → the option.
        self.accepted: dict[tuple[str, str], cfg.Opt] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._conf, name)
        return _Group(self, name) if isinstance(value, cfg.ConfigOpts.GroupAttr) else value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._conf

    def value(self, group: str, name: str) -> Any:
        """An option of a group: the operator's value where there is one."""
        if name in self._conf[group]:
            # oslo.config has no public way to an option.
            self.accepted[group, name] = self._conf._get_opt_info(name, group)["opt"]
        for key in (f"{group}.{name}", name):
            if key in self._options:
                self.read[key] = name
                return self._parsed(group, name, key)
        return self._conf[group][name]

    def _parsed(self, group: str, name: str, key: str) -> Any:
        raw = self._options[key]
        option = self._conf._get_opt_info(name, group)["opt"]
        try:
            value = option.type(raw)
        except ValueError as error:
            raise exception.ConfigError(reason=f"option {key} = {raw}: {error}") from None
        return [value] if option.multi else value


class _Group:
    """One group of an overlay."""

    def __init__(self, overlay: Overlay, name: str) -> None:
        self._overlay = overlay
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return self._overlay.value(self._name, name)

    def __getitem__(self, name: str) -> Any:
        return self._overlay.value(self._name, name)
