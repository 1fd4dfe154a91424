# SPDX-License-Identifier: Apache-2.0
"""A listener for notifications."""

import threading
from typing import Any

import oslo_messaging
from oslo_config import cfg

from cyborg.tests.fixtures import broker
from cyborg.tests.functional import deployments


class NotificationListener:
    """Receive all notifications of a topic after ``listen``; the broker keeps earlier ones.

    ``heard`` are the messages as they came: publisher, event type and payload. What was
    made on the broker goes with ``close``. ``exchange`` is that of the processes,
    where it is not the usual one.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, url: str, topic: str, *, exchange: str | None = None
    ) -> None:
        self.topic = topic
        self._url = url
        self._lock = threading.Lock()
        self._heard: list[dict[str, Any]] = []
        transport = oslo_messaging.get_notification_transport(conf, url=url)
        self._listener = oslo_messaging.get_notification_listener(
            transport,
            [oslo_messaging.Target(exchange=exchange, topic=topic)],
            [self],
            executor="threading",
        )

    def listen(self) -> None:
        """Begin."""
        self._listener.start()

    def info(
        self, _context: Any, publisher_id: str, event_type: str, payload: Any, _metadata: Any
    ) -> None:
        """See oslo.messaging's listener."""
        message = {"publisher_id": publisher_id, "event_type": event_type, "payload": payload}
        with self._lock:
            self._heard.append(message)

    @property
    def heard(self) -> list[dict[str, Any]]:
        """All messages so far."""
        with self._lock:
            return list(self._heard)

    def of(self, event_type: str, **fields: Any) -> list[dict[str, Any]]:
        """The payloads of one type whose fields have these values."""
        return [
            one["payload"]
            for one in self.heard
            if one["event_type"] == event_type
            and all(one["payload"][name] == value for name, value in fields.items())
        ]

    def states(self, event_type: str, uuid: str) -> list[str]:
        """The states of one thing, as they were told."""
        return [str(one["state"]) for one in self.of(event_type, uuid=uuid)]

    def close(self) -> None:
        """Listen no more; nobody waits for the end, which takes a second."""
        threading.Thread(target=self._close, name="listener-end").start()

    def _close(self) -> None:
        self._listener.stop()
        self._listener.wait()
        if deployments.HAS_BROKER:
            with broker.connection(self._url) as one:
                one.channel().queue_delete(f"{self.topic}.info")
