# SPDX-License-Identifier: Apache-2.0
"""The agent's side of privileged actions: journal an action, send it, and return its result."""

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.privileged.action import Action, Context

if TYPE_CHECKING:
    from oslo_privsep.priv_context import PrivContext

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: Errors that the privileged process sends back.
_ERRORS: dict[str, type[exception.CyborgError]] = {
    error.kind: error for error in (exception.HostError, exception.Invalid)
}


@dataclass(frozen=True)
class Export:
    """A context with its function, and the name by which a request calls the function."""

    context: "PrivContext"
    function: Callable[[str, Mapping[str, Any]], tuple[str, Any]]
    name: str


class Client:
    """Runs actions in the privileged process; any thread may call it.

    ``socket_path`` is the socket of that process; a process for one context only, if there is one,
    has this path with a dot and the name of the context. If there is neither socket,
    ``helper_command`` starts a process for each context, as oslo.privsep does. ``exports`` returns
    what ``contexts`` exports; it is called for the first action, not before, because ``contexts``
    imports oslo.privsep. ``journal`` gets one line before each action that changes the host. With
    ``root_only`` the socket must be one that root listens on: the privileged process itself asks
    the observer in this way, and the agent may own the directory.
    """

    def __init__(
        self,
        *,
        socket_path: str,
        exports: Callable[[], Mapping[Context, Export]],
        journal: Callable[[str], None],
        helper_command: str | None = None,
        root_only: bool = False,
    ) -> None:
        self._socket_path = socket_path
        self._helper_command = helper_command
        self._exports = exports
        self._journal = journal
        self._root_only = root_only
        self._locks = {kind: threading.Lock() for kind in Context}

    def run(self, action: Action[T]) -> T:
        """See Privileged."""
        if action.changes:
            self._journal(str(action))
            LOG.info("Privileged action %s", action)
        kind, value = self._send(action)
        if (error := _ERRORS.get(kind)) is not None:
            raise error(**value)
        return action.answer(value)

    def _send(self, action: Action[Any]) -> tuple[str, Any]:
        export = self._exports()[action.context]
        try:
            with self._locks[action.context]:
                channel = export.context.channel
                if channel is None or not channel.running:
                    self._connect(action.context, export)
            kind, value = export.function(type(action).__name__, action.plain())
        except exception.HostError:
            raise
        except Exception as error:
            # oslo.privsep raises errors of many classes, some of them by name.
            reason = str(error) or type(error).__name__
            raise exception.HostError(action=str(action), reason=reason) from error
        return kind, value

    def _connect(self, kind: Context, export: Export) -> None:
        """Connect a context to a process with its capabilities."""
        from cyborg.drivers.privileged.channel import Channel, Connection, peer

        connection = Connection()
        own = f"{self._socket_path}.{kind}"
        path = own if os.path.exists(own) else self._socket_path
        try:
            connection.connect(path)
            if self._root_only and (owner := peer(connection).user) != 0:
                raise PermissionError(errno.EPERM, f"user {owner} listens there, not root")
        except OSError as error:
            connection.close()
            if self._helper_command is None:
                raise exception.HostError(
                    action=f"connecting to {path}",
                    reason=f"{error.strerror}; start cyborg-privileged.socket, or correct [agent] "
                    "privileged_socket",
                    errno=error.errno,
                ) from error
            section = export.context.cfg_section
            cfg.CONF.set_override("helper_command", self._helper_command, group=section)
            export.context.channel = None
            export.context.start()
            return
        # oslo.privsep declares its own class here, and uses what both have.
        export.context.channel = Channel(connection, kind)  # type: ignore[assignment]
