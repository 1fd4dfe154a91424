# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of cyborg-api: tornado receives requests, and a pool of threads answers them.

One thread accepts connections, performs TLS handshakes and reads requests, and never waits for a
client. A request gets a thread of the pool only when its head and body have arrived within their
limits of time and size. So a client that is slow, silent or malformed holds a bounded amount of
memory and no thread.

Nor does a request that waits (see ``watching``): its thread has left an answer, which is sent when
the time is over or the server stops. A request that is woken before gets a thread again.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import queue
import re
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

from oslo_config import cfg
from tornado import httputil
from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, SSLIOStream
from tornado.netutil import bind_sockets

from cyborg import exception
from cyborg.api import expose
from cyborg.api.framework import WsgiApp
from cyborg.api.parsing import MAX_BYTES
from cyborg.api.watching import HOLD, End, Wait
from cyborg.conf.api import ApiOptions, TlsOptions

LOG = logging.getLogger(__name__)

#: Connections that may wait for the server to take them.
_BACKLOG: Final = 128
#: Complete requests that may wait for a thread.
_QUEUE: Final = 128
#: A request holds its thread during its RPC, so hosts with few processors need this many as well.
_MIN_THREADS: Final = 8
#: Seconds that active requests have to finish when the process stops.
_GRACE: Final = 20
#: Turns of the loop in which a stopping server reads the requests that have arrived.
_LAST_TURNS: Final = 8
#: Bytes that are read from a socket at a time.
_CHUNK: Final = 1 << 16
#: How much of a refused body is read, so that a client that sends it first can read the answer.
_DISCARD: Final = 8 * MAX_BYTES
#: Connections of one peer if the option is not set and clients connect without a proxy.
_PER_PEER: Final = 100
#: How often to log refused connections, in seconds.
_LOG_INTERVAL: Final = 60.0
#: Digits of a number that int() takes from anybody.
_LONGEST_NUMBER: Final = 20
#: Characters of a log line that quotes a client.
_LONGEST_LINE: Final = 300
#: A host name or an address, with or without a port.
_HOST: Final = re.compile(r"[\w.~:\[\]%-]*", re.ASCII)
#: What precedes the path in a request to a proxy.
_ORIGIN: Final = re.compile(r"https?://[^/?]*", re.IGNORECASE)
_ESCAPED_SLASH: Final = re.compile("%2F", re.IGNORECASE)


class HttpServer:
    """The server of a daemon; the constructor binds the port.

    Raises ConfigError if it cannot listen on the address or if the TLS settings are wrong.
    """

    def __init__(self, application: WsgiApp, conf: cfg.ConfigOpts) -> None:
        options = ApiOptions.read(conf)
        host, port = options.host_ip, options.port
        tls = _tls(TlsOptions.read(conf)) if options.enable_ssl_api else None
        try:
            self._sockets = bind_sockets(port, host, backlog=_BACKLOG)
        except OSError as error:
            raise exception.ConfigError(
                reason=f"[api] host_ip = {host}, port = {port} cannot be listened on: {error}"
            ) from error
        self._address = self._sockets[0].getsockname()[:2]
        # tornado logs one line for each malformed request.
        logging.getLogger("tornado.general").addFilter(_ESCAPED_LINE)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._pool = _Pool(
            application,
            threads=options.api_workers or max(os.cpu_count() or 1, _MIN_THREADS),
            call_loop=self._loop.call_soon_threadsafe,
        )
        self._front = _Front(
            options, self._pool, self.address[1], peer_limit=_peer_limit(options, conf)
        )
        self._listener = _Listener(
            self._front,
            ssl_options=tls,
            chunk_size=_CHUNK,
            max_header_size=options.max_header_size,
            idle_connection_timeout=options.header_timeout,
            body_timeout=options.body_timeout,
            # _Exchange answers 413 to a larger body; tornado would answer an empty 400.
            max_body_size=2**62,
            max_buffer_size=options.max_header_size + 2 * _CHUNK,
        )
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Return the bound host and port (``[api] port = 0`` binds a free port)."""
        host, port = self._address
        return str(host), int(port)

    @property
    def alive(self) -> bool:
        """Return whether the started server accepts connections."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start to answer requests; returns at once."""
        self._pool.start()
        self._thread.start()

    def stop(self) -> None:
        """Accept no further requests, and let active requests finish."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    def wait(self) -> None:
        """Wait until the last request is finished."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._pool.stop()
            self._loop.close()

    async def _serve(self) -> None:
        self._listener.add_sockets(self._sockets)
        await self._stopping.wait()
        self._listener.stop()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)
        await self._front.drain()
        await self._listener.close_all_connections()


class _Pool:
    """Threads that run the application; ``call_loop`` runs a function in the server's thread."""

    def __init__(
        self, application: WsgiApp, *, threads: int, call_loop: Callable[..., object]
    ) -> None:
        self._application = application
        self._call_loop = call_loop
        self._queue: queue.SimpleQueue[_Exchange | None] = queue.SimpleQueue()
        # Threads that do not outlive the process: a request can wait longer than a stop may take.
        self._threads = [
            threading.Thread(target=self._work, name=f"http-{number}", daemon=True)
            for number in range(threads)
        ]
        self._capacity = threads + _QUEUE
        self._taken = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    @property
    def has_free_thread(self) -> bool:
        """Return, in the server's thread, whether the next request is run at once."""
        return self._taken < len(self._threads)

    def submit(self, exchange: "_Exchange") -> bool:
        """Queue a request, in the server's thread; return False if the queue is full."""
        if self._taken >= self._capacity:
            return False
        self._taken += 1
        self._queue.put(exchange)
        return True

    def _work(self) -> None:
        while (exchange := self._queue.get()) is not None:
            answer, wait = None, None
            if not exchange.left:
                answer, wait = _answer(self._application, exchange.environ)
            try:
                self._call_loop(self._done, exchange, answer, wait)
            except RuntimeError:
                # The loop is closed: the request took longer than a stop may take.
                return

    def _done(self, exchange: "_Exchange", answer: "_Answer | None", wait: Wait | None) -> None:
        self._taken -= 1
        if answer is None or exchange.left:
            return
        if wait is None:
            exchange.send(*answer)
        else:
            exchange.keep(answer, wait, self._call_loop)


class _Front(httputil.HTTPServerConnectionDelegate):
    """Decides in the server's thread which connections and requests are served."""

    def __init__(self, options: ApiOptions, pool: _Pool, port: int, *, peer_limit: int) -> None:
        self.pool = pool
        self.stopping = False
        self.write_timeout = options.body_timeout
        self.constants: dict[str, Any] = {
            "SCRIPT_NAME": "",
            "SERVER_NAME": options.host_ip,
            "SERVER_PORT": str(port),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "https" if options.enable_ssl_api else "http",
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "wsgi.errors": sys.stderr,
        }
        self._limit = options.max_connections
        self._peer_limit = peer_limit
        self._peers: Counter[str] = Counter()
        self._exchanges: dict[object, _Exchange] = {}
        self._empty = asyncio.Event()
        self._next_line = 0.0

    def admit(self, address: tuple[Any, ...]) -> bool:
        """Count a new connection; return False if there are too many."""
        peer = _peer(address)
        full = self._peers.total() >= self._limit
        if full and not self._close_oldest():
            self._log_refusal(peer, f"[api] max_connections = {self._limit} are open")
            return False
        if self._peer_limit and self._peers[peer] >= self._peer_limit:
            limit = f"[api] max_connections_per_peer = {self._peer_limit}"
            self._log_refusal(peer, f"{limit} are open from this address")
            return False
        self._peers[peer] += 1
        return True

    def start_request(
        self, server_conn: object, request_conn: httputil.HTTPConnection
    ) -> "_Exchange":
        """Return what receives the next request of a connection."""
        assert isinstance(request_conn, HTTP1Connection)  # noqa: S101 - for mypy
        if self.stopping:
            request_conn.stream.close()
        self._exchanges[server_conn] = exchange = _Exchange(self, request_conn)
        return exchange

    def on_close(self, server_conn: object) -> None:
        """Forget a connection."""
        assert isinstance(server_conn, HTTP1ServerConnection)  # noqa: S101 - for mypy
        del self._exchanges[server_conn]
        context: Any = server_conn.context
        peer = _peer(context.address)
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        if not self._exchanges:
            self._empty.set()

    async def drain(self) -> None:
        """Close the connections without a request, and wait for the others, at most _GRACE.

        Requests that wait for events are answered at once.
        """
        self.stopping = True
        for exchange in list(self._exchanges.values()):
            if not exchange.environ:
                exchange.connection.close()
            exchange.wait_no_more()
        if self._exchanges:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), _GRACE)
            except TimeoutError:
                LOG.warning(
                    "%d connections are closed before their requests are answered: they took more "
                    "than %d seconds",
                    len(self._exchanges),
                    _GRACE,
                )

    def _close_oldest(self) -> bool:
        """Close the oldest connection that waits for a head; return False if there is none.

        So clients that connect and send nothing cannot keep others out.
        """
        for exchange in self._exchanges.values():
            connection = exchange.connection
            if not exchange.environ and not connection.stream.closed():
                peer = _peer(cast(Any, connection.context).address)
                self._log_refusal(peer, f"[api] max_connections = {self._limit} are open")
                connection.stream.close()
                return True
        return False

    def _log_refusal(self, peer: str, reason: str) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LOG_INTERVAL
            LOG.warning("Connection of %s closed, and perhaps others: %s", peer, reason)


class ClientStream(IOStream):
    """A connection without TLS, whose client may close its side when it has sent a request.

    tornado alone would close the connection. This does so while a request is queued.
    """

    _queued = _ended = False

    def queue(self, *, queued: bool) -> None:
        """Tell whether a request waits for a thread."""
        self._queued = queued
        if queued and self._ended:
            self.close()

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """See BaseIOStream: None means that there is nothing to read now."""
        size = super().read_from_fd(buf)
        self._ended = size == 0
        # Only who waits for more is at the end.
        if self._ended and not self._queued and (self.writing() or not self.reading()):
            self.io_loop.add_callback(self._listen_no_more)
            return None
        return size

    def _listen_no_more(self) -> None:
        """Do not let the end that was read wake the loop again; to write listens once more.

        tornado has no public way to do this.
        """
        if not self.closed() and not self.writing():
            self.io_loop.remove_handler(self.socket)
            self._state = None


class _Listener(HTTPServer):
    """tornado's server with a _Front, which it also asks before it serves a connection."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if not isinstance(stream, SSLIOStream):
            stream = ClientStream(
                stream.socket,
                max_buffer_size=self.max_buffer_size,
                read_chunk_size=self.read_chunk_size,
            )
        if self._front.admit(address):
            super().handle_stream(stream, address)
        else:
            stream.close()

    def on_close(self, server_conn: object) -> None:
        super().on_close(server_conn)
        self._front.on_close(server_conn)

    @property
    def _front(self) -> _Front:
        assert isinstance(self.request_callback, _Front)  # noqa: S101 - for mypy
        return self.request_callback


class _Exchange(httputil.HTTPMessageDelegate):
    """One request and its answer, in the server's thread; only ``_Pool`` reads it in another.

    ``environ`` is empty until the head has arrived. ``left`` is true when the client has closed the
    connection.
    """

    def __init__(self, front: _Front, connection: HTTP1Connection) -> None:
        self.connection = connection
        self.environ: dict[str, Any] = {}
        self.left = False
        self._front = front
        self._kept: _Kept | None = None
        #: When the first wait of this request ends, by the clock of the loop.
        self._deadline: float | None = None
        self._body = bytearray()
        self._size = 0
        self._refused = False

    def headers_received(
        self,
        start_line: httputil.RequestStartLine | httputil.ResponseStartLine,
        headers: httputil.HTTPHeaders,
    ) -> None:
        """Check the head; refuse one that HTTP does not allow.

        tornado answers what it cannot parse itself, with a 400 that has no body. It has no public
        way to change that answer.
        """
        assert isinstance(start_line, httputil.RequestStartLine)  # noqa: S101 - for mypy
        context: Any = self.connection.context
        self.environ = {
            **self._front.constants,
            "REMOTE_ADDR": str(context.address[0]),
            "REMOTE_PORT": str(context.address[1]),
        }
        try:
            self.environ |= _environ(start_line, headers)
        except httputil.HTTPInputError as error:
            self._refused = True
            LOG.info("Request of %s refused: %s", self.environ["REMOTE_ADDR"], error)
            self._write(*_refusal(400, f"{error}.", ("Connection", "close")))
            self.connection.finish()
            return
        length = headers.get("Content-Length", "")
        # tornado refuses a length that is no number, or together with Transfer-Encoding.
        large = length.isdecimal() and len(length) < _LONGEST_NUMBER and int(length) > MAX_BYTES
        if large and "Transfer-Encoding" not in headers:
            self._refuse_body()
            if "Expect" in headers:
                self.connection.finish()

    def data_received(self, chunk: bytes) -> None:
        """Keep a part of the body while it is within the limit."""
        self._size += len(chunk)
        if self._refused:
            if self._size > _DISCARD:
                self.connection.finish()
        elif self._size > MAX_BYTES:
            self._refuse_body()
        else:
            self._body += chunk

    def finish(self) -> None:
        """Pass the complete request on."""
        if self._refused:
            self.connection.finish()
            return
        if self._size:
            self.environ["CONTENT_LENGTH"] = str(self._size)
        self.environ["wsgi.input"] = BytesIO(self._body)
        self.connection.set_close_callback(self._leave)
        # Who closes its side while all threads are busy has left the queue.
        if self._has_left_queue(queued=not self._front.pool.has_free_thread):
            return
        if not self._front.pool.submit(self):
            self._write(*_refusal(503, "The service is overloaded.", ("Retry-After", "1")))
            self.connection.finish()

    def _has_left_queue(self, *, queued: bool) -> bool:
        """Tell the stream whether the request waits for a thread; return whether it is closed."""
        stream = self.connection.stream
        if isinstance(stream, ClientStream):
            stream.queue(queued=queued)
        # tornado tells of a later end only.
        return bool(stream.closed())

    def keep(self, answer: "_Answer", wait: Wait, call_loop: Callable[..., object]) -> None:
        """Keep an answer until the wait ends; a client that closes its side meanwhile has left."""
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + wait.seconds
        if self._front.stopping or loop.time() >= self._deadline:
            self.send(*answer)
            return
        if self._has_left_queue(queued=True):
            return

        def wake() -> None:
            # The loop is closed: a stopping server has answered this request.
            with contextlib.suppress(RuntimeError):
                call_loop(self._wake)

        end = wait.begin(wake)
        if end is None:
            self.send(*answer)
            return
        timer = loop.call_at(self._deadline, self.wait_no_more)
        self._kept = _Kept(answer, end, timer)

    def wait_no_more(self) -> None:
        """Send the answer that is kept, if there is one."""
        kept = self._end_wait()
        if kept is not None:
            self.send(*kept.answer)

    def _wake(self) -> None:
        """Carry out the request again; send the answer that is kept if all threads are busy."""
        kept = self._end_wait()
        if kept is None or self._has_left_queue(queued=not self._front.pool.has_free_thread):
            return
        if not self._front.pool.submit(self):
            self.send(*kept.answer)

    def _end_wait(self) -> "_Kept | None":
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.end()
            kept.timer.cancel()
        return kept

    def on_connection_close(self) -> None:
        """Do nothing: the request was not complete."""

    def send(
        self, line: httputil.ResponseStartLine, headers: httputil.HTTPHeaders, body: bytes
    ) -> None:
        """Send an answer, whose client must read it within the limit for bodies."""
        written = self._write(
            line, headers, b"" if self.environ["REQUEST_METHOD"] == "HEAD" else body
        )
        self.connection.finish()
        stream = self.connection.stream
        if isinstance(stream, ClientStream):
            stream.queue(queued=False)
        if stream.writing():
            deadline = asyncio.get_running_loop().call_later(
                self._front.write_timeout, stream.close
            )
            written.add_done_callback(lambda _: deadline.cancel())

    def _write(
        self, line: httputil.ResponseStartLine, headers: httputil.HTTPHeaders, body: bytes
    ) -> "asyncio.Future[None]":
        if self._front.stopping:
            headers["Connection"] = "close"
        return self.connection.write_headers(line, headers, body)

    def _leave(self) -> None:
        self.left = True
        self._end_wait()

    def _refuse_body(self) -> None:
        self._refused = True
        self._body.clear()
        LOG.info(
            "%s of %s refused: its body has more than %d bytes",
            self.environ["REQUEST_METHOD"],
            self.environ["REMOTE_ADDR"],
            MAX_BYTES,
        )
        self._write(*_refusal(413, f"A body has at most {MAX_BYTES} bytes."))


_Answer = tuple[httputil.ResponseStartLine, httputil.HTTPHeaders, bytes]


@dataclass(frozen=True)
class _Kept:
    """The answer of a request that waits, what ends the wait, and the timer that will."""

    answer: _Answer
    end: End
    timer: asyncio.TimerHandle


def _answer(application: WsgiApp, request: dict[str, Any]) -> tuple[_Answer, Wait | None]:
    """Return the application's answer to a request, and what the request may wait for before.

    The environment of the request stays as it is, for the next time.
    """
    waits: list[Wait] = []
    environ = {**request, HOLD: waits.append}
    environ["wsgi.input"].seek(0)
    status, sent = "", [("", "")]
    parts: list[bytes] = []

    def start_response(
        line: str, fields: list[tuple[str, str]], _error: object = None
    ) -> Callable[[bytes], object]:
        nonlocal status, sent
        status, sent = line, fields
        return parts.append

    # The application is foreign code here: an error in it must not end the thread.
    try:
        result = application(environ, start_response)
        try:
            parts.extend(result)
        finally:
            getattr(result, "close", lambda: None)()
        answer = _rendered(status, sent, b"".join(parts))
    except Exception:
        LOG.exception("%s %s failed", environ["REQUEST_METHOD"], ascii(environ["PATH_INFO"]))
        return _refusal(500, "An unexpected error occurred."), None
    return answer, waits[-1] if waits and answer[0].code == HTTPStatus.OK else None


def _rendered(status: str, fields: list[tuple[str, str]], body: bytes) -> _Answer:
    code, _, reason = status.partition(" ")
    headers = httputil.HTTPHeaders()
    for name, value in fields:
        headers.add(name, value)
    if "Content-Length" not in headers and code not in ("204", "304"):
        headers["Content-Length"] = str(len(body))
    if "Date" not in headers:
        headers["Date"] = formatdate(usegmt=True)
    return httputil.ResponseStartLine("HTTP/1.1", int(code), reason), headers, body


def _refusal(status: int, sentence: str, *more: tuple[str, str]) -> _Answer:
    """Return an answer in the form of the API's errors."""
    answer = expose.refusal(status, sentence)
    line = f"{status} {HTTPStatus(status).phrase}"
    return _rendered(line, [*answer.headers.items(), *more], answer.body)


def _environ(line: httputil.RequestStartLine, headers: httputil.HTTPHeaders) -> dict[str, Any]:
    """Return the part of the WSGI environment that the client decides.

    Raises HTTPInputError for a request target or a Host that HTTP does not allow (RFC 9112,
    section 3.2). Fields with an underscore are dropped, because WSGI cannot tell them from fields
    with a hyphen.
    """
    host = headers.get("Host", "" if line.version == "HTTP/1.0" else None)
    if host is None or not _HOST.fullmatch(host):
        raise httputil.HTTPInputError("The Host header is missing, repeated or no host")
    target = line.path if line.path[0] == "/" else _ORIGIN.sub("", line.path, count=1)
    if (target == line.path and target[0] != "/") or "#" in target:
        raise httputil.HTTPInputError("The request target is neither a path nor a URL")
    path, _, query = target.partition("?")
    if "%" in path:
        # The characters of a WSGI path are bytes. An escaped slash separates nothing.
        parts = (unquote_to_bytes(part.encode("latin-1")) for part in _ESCAPED_SLASH.split(path))
        path = b"%2F".join(parts).decode("latin-1")
    environ = {
        "REQUEST_METHOD": line.method,
        "PATH_INFO": path or "/",
        "QUERY_STRING": query,
        "SERVER_PROTOCOL": line.version,
    }
    for name, value in headers.items():
        if "_" not in name:
            environ[f"HTTP_{name.replace('-', '_').upper()}"] = value
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    # The body is complete when the application sees it, and its length is counted.
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    return environ


def _peer_limit(options: ApiOptions, conf: cfg.ConfigOpts) -> int:
    """Return how many connections one peer may have; 0 means no limit."""
    if options.max_connections_per_peer is not None:
        return options.max_connections_per_peer
    # Registered by the filter HTTPProxyToWSGI, if the pipeline has it.
    name = "enable_proxy_headers_parsing"
    group = conf.oslo_middleware if "oslo_middleware" in conf else {}
    behind_proxy = name in group and group[name]
    try:
        local = ipaddress.ip_address(options.host_ip).is_loopback
    except ValueError:
        local = options.host_ip == "localhost"
    return 0 if behind_proxy or local else _PER_PEER


def _peer(address: tuple[Any, ...]) -> str:
    """Return what counts as one peer: an IPv4 address, or a network of the size IPv6 hosts get."""
    host = str(address[0])
    if ":" not in host:
        return host
    ip = ipaddress.IPv6Address(host.partition("%")[0])
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip, 64), strict=False))


def _tls(files: TlsOptions) -> ssl.SSLContext:
    if not files.cert_file or not files.key_file:
        raise exception.ConfigError(
            reason="[api] enable_ssl_api = true needs [ssl] cert_file and key_file."
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.cert_file, files.key_file)
        if files.ca_file:
            context.load_verify_locations(files.ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise exception.ConfigError(
            reason=f"[ssl] cert_file = {files.cert_file}, key_file = {files.key_file}, ca_file = "
            f"{files.ca_file} cannot be used: {error}"
        ) from error
    return context


class _EscapedLine(logging.Filter):
    """Shortens and escapes the log lines of tornado, which quote what clients sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage().encode("unicode_escape").decode("ascii")
        record.msg, record.args = "%s", (text[:_LONGEST_LINE],)
        return True


_ESCAPED_LINE: Final = _EscapedLine()
