# SPDX-License-Identifier: Apache-2.0
"""Serve a WSGI application on a free port of the loopback interface, from this process."""

import os
import threading
import urllib.request
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_HERE = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        # The one of http.server looks the host's name up, which takes seconds without DNS.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        """Say nothing: who wants the requests records them in the application."""


class Loopback:
    """A server for one application; usable as a context manager.

    ``port`` 0 takes a free one. Requests run in threads of their own; ``one_at_a_time`` lets only
    one of them into the application at any moment.
    """

    def __init__(
        self, application: "WSGIApplication", port: int = 0, one_at_a_time: bool = False
    ) -> None:
        self._server = make_server(
            _HERE,
            port,
            _Serialised(application) if one_at_a_time else application,
            server_class=_Server,
            handler_class=_Handler,
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="loopback", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it listens, without a trailing slash."""
        return f"http://{_HERE}:{self._server.server_port}"

    def start(self) -> None:
        """Answer from now on (the port is taken since the constructor)."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port; requests in hand are left to their threads."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def bypass_proxies() -> bool:
    """Have nothing in this process ask a proxy for the loopback; whether one would have been."""
    found = urllib.request.getproxies()
    if not found.keys() & {"http", "all"} or urllib.request.proxy_bypass(_HERE):
        return False
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = f"{found.get('no', '')},{_HERE}".lstrip(",")
    return True


class _Serialised:
    def __init__(self, application: "WSGIApplication") -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        with self._lock:
            return list(self._application(environ, start_response))
