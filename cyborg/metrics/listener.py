# SPDX-License-Identifier: Apache-2.0
"""The HTTP server on which a daemon exposes its metrics; it uses cheroot, like the API."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from cheroot import wsgi
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from cyborg import exception

LOG = logging.getLogger(__name__)

PATH: Final = "/metrics"
_THREADS: Final = 2


class _Cheroot(wsgi.Server):
    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Write to the log of the service, not to standard error."""
        LOG.log(level, "%s", msg.strip(), exc_info=traceback)


class Page:
    """A WSGI application with one page; ``registry`` returns the registry that it exposes."""

    def __init__(self, registry: Callable[[], CollectorRegistry]) -> None:
        self._registry = registry

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer GET and HEAD of the page; all other requests get 404 or 405."""
        if environ.get("PATH_INFO", "").rstrip("/") != PATH:
            return _answer(start_response, "404 Not Found", b"")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", b"", ("Allow", "GET, HEAD"))
        body = generate_latest(self._registry())
        _answer(start_response, "200 OK", body, ("Content-Type", CONTENT_TYPE_PLAIN_0_0_4))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


class Listener:
    """The metrics server of a daemon; the constructor binds its port.

    ``address`` is ``host:port``, an IPv6 host in brackets. Raises ConfigError when the server
    cannot listen there.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, _, port = address.rpartition(":")
        self._server = _Cheroot(
            (host.strip("[]"), int(port)),
            Page(lambda: registry),
            numthreads=_THREADS,
            server_name="metrics",
        )
        try:
            self._server.prepare()
        except (OSError, OverflowError) as error:
            raise exception.ConfigError(
                reason=f"metrics_listen = {address} cannot be listened on: {error}"
            ) from error
        self._thread = threading.Thread(target=self._server.serve, name="metrics", daemon=True)

    @property
    def url(self) -> str:
        """Return the URL of the page with the bound port (port 0 selects a free one)."""
        host, port = self._server.bind_addr[:2]
        return f"http://{f'[{host}]' if ':' in str(host) else host}:{port}{PATH}"

    def start(self) -> None:
        """Start to answer; return without waiting."""
        LOG.info("Metrics are available at %s", self.url)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._server.stop()

    def wait(self) -> None:
        """Wait until the last answer is sent."""
        self._thread.join()


def _answer(
    start_response: Callable[..., Any], status: str, body: bytes, *headers: tuple[str, str]
) -> Iterable[bytes]:
    start_response(status, [("Content-Length", str(len(body))), *headers])
    return [body]
