# SPDX-License-Identifier: Apache-2.0
"""Send notifications over the bus, through oslo.messaging's notifier."""

import logging
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts

from cyborg import exception
from cyborg.model.notification import Notification
from cyborg.rpc.threads import in_thread

LOG = logging.getLogger(__name__)

GROUP: Final = "oslo_messaging_notifications"
_NOWHERE: Final = "noop"


def enabled(conf: cfg.ConfigOpts) -> bool:
    """Return whether the configuration has a driver that sends notifications."""
    conf.register_opts(dict(opts.list_opts())[GROUP], GROUP)
    return any(driver != _NOWHERE for driver in conf[GROUP].driver)


class Notifier:
    """Send notifications as ``publisher``; connect at first use.

    ``conf`` must be the global configuration, of which a ``Bus`` has been made; ``url`` overrides
    the transports named there. oslo.messaging does not report a failed send, but with
    ``[oslo_messaging_notifications] retry = -1``, its default, it retries until the send succeeds.
    """

    def __init__(self, conf: cfg.ConfigOpts, publisher: str, *, url: str | None = None) -> None:
        transport = oslo_messaging.get_notification_transport(conf, url=url)
        self.enabled = enabled(conf)
        self._notifier = oslo_messaging.Notifier(transport, publisher)
        self._closed: Future[None] = Future()
        self._under_way: Future[None] | None = None

    def send(self, notifications: Sequence[Notification], *, within: float | None = None) -> None:
        """Send all notifications in order, and return when they are sent.

        Raises exception.Unavailable if this takes longer than ``within`` seconds (None: no limit)
        or until ``close``. The rest may still be sent later; the next call waits for it first.
        """
        if not self.enabled or not notifications:
            return

        def send_all() -> None:
            for notification in notifications:
                self._notifier.info({}, notification.event_type, notification.payload)

        self._wait(self._under_way, within)
        self._under_way = in_thread(send_all)
        self._wait(self._under_way, within)

    def close(self) -> None:
        """Abandon messages in progress: callers that wait for them get Unavailable at once."""
        if not self._closed.done():
            self._closed.set_result(None)

    def _wait(self, sending: Future[None] | None, within: float | None) -> None:
        if sending is None:
            return
        wait((sending, self._closed), within, FIRST_COMPLETED)
        if not sending.done():
            reason = "this process is ending" if self._closed.done() else "it takes no message"
            raise exception.Unavailable(peer="The bus of notifications", reason=reason)
        sending.result()
