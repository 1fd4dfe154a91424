# SPDX-License-Identifier: Apache-2.0
"""Read the limits of projects from Keystone (unified limits), by oslo.limit.

oslo.limit is configured by the group [oslo_limit] of the global configuration (``cfg.CONF``), which
is that of the process. It is imported only where quotas are used, and so is the SDK that it needs:
some 500 modules.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import requests
from keystoneauth1 import exceptions as ks_exceptions
from oslo_config import cfg

from cyborg import exception
from cyborg.clients.http import KEYSTONE

if TYPE_CHECKING:
    from oslo_limit.limit import Enforcer

#: Seconds without any data after which a request fails, unless [oslo_limit] timeout is set.
_TIMEOUT: Final = 10


class ProjectLimits(Protocol):
    """The limits of projects."""

    def of_project(self, project_id: str, resources: Sequence[str]) -> Mapping[str, int]:
        """Return resource → limit; -1 stands for no limit. Raises exception.Unavailable."""
        ...

    def registered(self) -> Sequence[str]:
        """Return the resources that have a registered limit; raises exception.Unavailable."""
        ...


class UnifiedLimits:
    """The limits that Keystone has; it is asked at each call. Safe for threads.

    A resource without a registered limit has the limit 0, as in every service with oslo.limit.
    Keystone must have the enforcement model ``flat``, which is its default.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enforcer: Enforcer | None = None

    def of_project(self, project_id: str, resources: Sequence[str]) -> Mapping[str, int]:
        """Return resource → limit; -1 stands for no limit. Raises exception.Unavailable."""
        return dict(self._ask("get_project_limits", project_id, resources))

    def registered(self) -> Sequence[str]:
        """Return the resources that have a registered limit; raises exception.Unavailable."""
        return [name for name, _ in self._ask("get_registered_limits", None)]

    def _ask(self, method: str, *arguments: Any) -> Sequence[tuple[str, int]]:
        from openstack import exceptions as sdk_exceptions
        from oslo_limit import exception as limit_exceptions

        try:
            answer: Sequence[tuple[str, int]] = getattr(self._made(), method)(*arguments)
        except (
            limit_exceptions.SessionInitError,
            sdk_exceptions.SDKException,
            ks_exceptions.ClientException,
            requests.RequestException,
            # An endpoint that is not in the catalogue; an enforcement model that is not supported.
            ValueError,
            NotImplementedError,
        ) as fault:
            reason = str(fault).strip().partition("\n")[0] or type(fault).__name__
            raise exception.Unavailable(
                peer=KEYSTONE,
                reason=f"the limits of projects cannot be read ([oslo_limit]): {reason}",
                public="The identity service (Keystone) is not available.",
            ) from fault
        return answer

    def _made(self) -> "Enforcer":
        """Return the enforcer; it asks Keystone when it is made, which may have to be repeated."""
        from oslo_limit.limit import Enforcer

        with self._lock:
            if self._enforcer is None:
                # By default oslo.limit waits for an answer for ever.
                cfg.CONF.set_default("timeout", _TIMEOUT, group="oslo_limit")
                # Usage is counted in the transaction that adds to it, not by oslo.limit.
                self._enforcer = Enforcer(lambda project, names: {}, cache=False)
            return self._enforcer
