# SPDX-License-Identifier: Apache-2.0
"""The server of cyborg-api against clients that send too slowly, too much, or no HTTP at all."""

import json
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tornado.iostream import IOStream

from cyborg.api.server import ClientStream, HttpServer
from cyborg.tests.fixtures.waiting import PATIENCE, Gate, NotInTime, acquired, eventually
from cyborg.tests.unit.api.conftest import MakeConf
from cyborg.tests.unit.api.test_doors import certificate, tls

__all__ = ["certificate"]

#: In seconds: the server does not end by itself what a test waits for.
HOUR = 3600
NEVER = f"header_timeout = {HOUR}\nbody_timeout = {HOUR}\n"
GET = b"GET / HTTP/1.1\r\nHost: cyborg\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: cyborg\r\n"
MIB = 1 << 20


class Recorder:
    """An application that keeps the environment of each request, and echoes the body.

    While ``go_on`` is not set, a request waits.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.arrived = threading.Semaphore(0)
        self.go_on = Gate()
        self.go_on.set()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.requests.append(environ)
        self.arrived.release()
        self.go_on.hold()
        if environ["PATH_INFO"] == "/fails":
            raise RuntimeError("a defect of the application")
        if environ["PATH_INFO"] == "/large":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [bytes(MIB)] * 64
        body = environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body or b"nothing"]


Serve = Callable[..., HttpServer]


@pytest.fixture
def app() -> Recorder:
    return Recorder()


@pytest.fixture
def serve(make_conf: MakeConf, app: Recorder, caplog: pytest.LogCaptureFixture) -> Iterator[Serve]:
    """Serve the recorder on a free port, with the given options of [api]."""
    with ExitStack() as endings:

        def start(text: str = "") -> HttpServer:
            conf = make_conf(f"[api]\nport = 0\n{text}")
            # The set-up of the log has removed it.
            logging.getLogger().addHandler(caplog.handler)
            endings.callback(logging.getLogger().removeHandler, caplog.handler)
            server = HttpServer(app, conf)
            server.start()
            endings.callback(server.wait)
            endings.callback(server.stop)
            endings.callback(app.go_on.set)
            return server

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    """Connect to a server and send bytes; the connection lasts until the end of the test."""
    with ExitStack() as endings:

        def make(server: HttpServer, data: bytes = b"") -> socket.socket:
            client = socket.create_connection(server.address, timeout=PATIENCE)
            endings.enter_context(closing(client))
            client.sendall(data)
            return client

        yield make


Connect = Callable[..., socket.socket]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released each time that the server reads the end of what a client sends."""
    read, ends = IOStream.read_from_fd, threading.Semaphore(0)

    def noticed(stream: IOStream, buffer: bytearray | memoryview) -> int | None:
        size = read(stream, buffer)
        if size == 0:
            ends.release()
        return size

    monkeypatch.setattr(IOStream, "read_from_fd", noticed)
    return ends


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released each time that the server reads some of what a client sends."""
    read, arrivals = IOStream.read_from_fd, threading.Semaphore(0)

    def noticed(stream: IOStream, buffer: bytearray | memoryview) -> int | None:
        size = read(stream, buffer)
        if size:
            arrivals.release()
        return size

    monkeypatch.setattr(IOStream, "read_from_fd", noticed)
    return arrivals


def received(client: socket.socket) -> bytes:
    """The next bytes from the server; none at the end of the connection."""
    try:
        return client.recv(65536)
    except TimeoutError:
        raise NotInTime("the server sends something, or closes the connection") from None


def everything(client: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    text = bytearray()
    try:
        while data := received(client):
            text += data
    except ConnectionResetError:
        # The server closed while something that it does not read was under way.
        pass
    return bytes(text)


def answer(client: socket.socket) -> bytes:
    """The next answer of a connection, which must have a Content-Length."""
    text = b""
    while b"\r\n\r\n" not in text:
        data = received(client)
        assert data, text
        text += data
    head, _, body = text.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"Content-Length"]):
        data = received(client)
        assert data, text
        body += data
    return head + b"\r\n\r\n" + body


def pushed(client: socket.socket, piece: bytes) -> int:
    """How many bytes of 150 MiB the client can send before the server closes the connection."""
    sent = 0
    while sent < 150 * MIB:
        try:
            client.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            break
        sent += len(piece)
    return sent


def is_served(server: HttpServer, connect: Connect) -> bool:
    return answer(connect(server, GET)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("number", [1, 4])
def test_silent_tls_connections_hold_up_nobody(
    serve: Serve, connect: Connect, certificate: tuple[Path, Path], number: int
) -> None:
    server = serve(f"{NEVER}{tls(certificate)}")
    silent = [connect(server) for _ in range(number)]
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with (
        socket.create_connection(server.address, timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(GET)
        assert received(client).startswith(b"HTTP/1.1 200 ")
    for one in silent:
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(1)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: cy",
        POST + b"Content-Length: 10\r\n\r\nslow",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nsl",
    ],
)
def test_slow_requests_hold_no_thread(serve: Serve, connect: Connect, start: bytes) -> None:
    server = serve(f"api_workers = 2\n{NEVER}")
    for _ in range(8):
        connect(server, start)
    assert is_served(server, connect)


def test_idle_connection_and_slow_head_are_closed(serve: Serve, connect: Connect) -> None:
    server = serve(f"header_timeout = 1\nbody_timeout = {HOUR}\n")
    assert everything(connect(server)) == b""
    assert everything(connect(server, GET[:-4])) == b""

    def kept() -> socket.socket | None:
        # A busy machine may also close a connection whose request comes too late.
        client = connect(server, GET)
        with suppress(AssertionError, ConnectionError):
            return client if answer(client).startswith(b"HTTP/1.1 200 ") else None
        return None

    assert everything(eventually(kept)) == b""


def test_silent_tls_connection_is_closed(
    serve: Serve, connect: Connect, certificate: tuple[Path, Path]
) -> None:
    server = serve(f"header_timeout = 1\nbody_timeout = {HOUR}\n{tls(certificate)}")
    assert everything(connect(server)) == b""


def test_slow_body_is_closed(serve: Serve, connect: Connect, app: Recorder) -> None:
    server = serve(f"body_timeout = 1\nheader_timeout = {HOUR}\n")
    assert everything(connect(server, POST + b"Content-Length: 10\r\n\r\nslow")) == b""
    assert app.requests == []


def test_client_that_does_not_read_is_closed(serve: Serve, connect: Connect, app: Recorder) -> None:
    server = serve(f"body_timeout = 1\nheader_timeout = {HOUR}\n")
    client = connect(server, GET.replace(b"/", b"/large", 1))
    acquired(app.arrived)
    with socket.create_connection(server.address, timeout=PATIENCE) as other:
        # A connection that was idle for longer than the limit is not at fault.
        other.sendall(GET)
        answer(other)

    def is_closed() -> bool:
        try:
            client.sendall(b"x")
        except OSError:
            return True
        return False

    eventually(is_closed, step=0.2)
    assert len(everything(client)) < 64 * MIB


def test_head_above_limit_is_closed_without_being_kept(serve: Serve, connect: Connect) -> None:
    server = serve("max_header_size = 16384\n")
    client = connect(server, b"GET / HTTP/1.1\r\nHost: cyborg\r\nX-Large: ")
    # What the buffers of both sockets hold.
    assert pushed(client, b"x" * 65536) < 16 * MIB
    assert is_served(server, connect)


def test_long_query_within_limit_is_served(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server, b"GET /?arqs=" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: cyborg\r\n\r\n")
    assert answer(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("chunked", [True, False])
def test_body_above_limit_is_refused_before_it_has_arrived(
    serve: Serve, connect: Connect, app: Recorder, *, chunked: bool
) -> None:
    server = serve()
    how = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (48 * MIB)
    client = connect(server, POST + how + b"\r\n\r\n")
    piece = bytes(65536)
    data = b"10000\r\n" + piece + b"\r\n" if chunked else piece
    for _ in range(20):
        client.sendall(data)
    refusal = answer(client)
    assert refusal.startswith(b"HTTP/1.1 413 ")
    assert b"error_message" in refusal
    assert b"1048576 bytes" in refusal
    assert app.requests == []
    # A part of the rest is read, so that clients that send it first can read the answer.
    assert pushed(client, data) < 32 * MIB
    assert is_served(server, connect)


def test_client_that_asks_first_does_not_send_a_large_body(serve: Serve, connect: Connect) -> None:
    head = POST + b"Content-Length: 50000000\r\nExpect: 100-continue\r\n\r\n"
    assert everything(connect(serve(), head)).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nnone\r\nbody\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-4\r\nbody\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbody\r\n0\r\n\r\n",
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
        POST + b"Content-Length: +4\r\n\r\nbody",
        POST + b"Content-Length: many\x1b[2J\r\n\r\nbody",
        POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nbody",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: one\r\nHost: two\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        b"GET nothing HTTP/1.1\r\nHost: cyborg\r\n\r\n",
        b"GET /#fragment HTTP/1.1\r\nHost: cyborg\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: cyborg\r\nno field\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    ],
)
def test_malformed_request_is_answered_with_400_and_one_log_line(
    serve: Serve,
    connect: Connect,
    app: Recorder,
    caplog: pytest.LogCaptureFixture,
    request_: bytes,
) -> None:
    server = serve()
    assert everything(connect(server, request_)).startswith(b"HTTP/1.1 400 ")
    assert app.requests == []
    (record,) = caplog.records
    assert record.exc_info is None
    assert len(record.getMessage()) < 400
    assert record.getMessage().isprintable()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "Host"),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "Host"),
        (b"GET nothing HTTP/1.1\r\nHost: cyborg\r\n\r\n", "request target"),
        (b"POST /#x HTTP/1.1\r\nHost: c\r\nContent-Length: 4\r\n\r\nbody", "request target"),
    ],
)
def test_refused_head_is_answered_in_the_form_of_the_errors_of_the_api(
    serve: Serve, connect: Connect, app: Recorder, request_: bytes, reason: str
) -> None:
    server = serve()
    head, _, body = everything(connect(server, request_)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Connection: close" in head
    assert b"Content-Type: application/json" in head
    assert reason in json.loads(json.loads(body)["error_message"])["faultstring"]
    assert app.requests == []
    assert is_served(server, connect)


def test_cut_body_never_reaches_the_application(
    serve: Serve, connect: Connect, app: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    for how in (b"Content-Length: 10\r\n\r\ncut", b"Transfer-Encoding: chunked\r\n\r\n5\r\ncu"):
        client = connect(server, POST + how)
        client.shutdown(socket.SHUT_WR)
        assert everything(client) == b""
    assert app.requests == []
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_connections_of_one_peer_are_limited(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve("max_connections_per_peer = 2\n")
    held = [connect(server, GET) for _ in range(2)]
    for client in held:
        answer(client)
    for _ in range(3):
        assert everything(connect(server)) == b""
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "max_connections_per_peer = 2" in record.getMessage()
    held[0].close()
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    eventually(lambda: everything(connect(server, last)).startswith(b"HTTP/1.1 200 "))


def test_connections_are_limited_and_peers_of_a_proxy_are_not(
    serve: Serve, connect: Connect
) -> None:
    server = serve("max_connections = 150\n")
    answered = connect(server, GET)
    answer(answered)
    held = [connect(server) for _ in range(149)]
    # The first one waits for its next head.
    assert answer(connect(server, GET)).startswith(b"HTTP/1.1 200 ")
    assert everything(answered) == b""
    for client in held[:3]:
        assert answer(connect(server, GET)).startswith(b"HTTP/1.1 200 ")
        assert everything(client) == b""


def test_new_connection_is_closed_if_all_others_have_sent_a_head(
    serve: Serve, connect: Connect, app: Recorder
) -> None:
    server = serve("max_connections = 3\n")
    app.go_on.clear()
    held = [connect(server, GET) for _ in range(3)]
    for _ in held:
        acquired(app.arrived)
    assert everything(connect(server)) == b""
    app.go_on.set()
    for client in held:
        assert answer(client).startswith(b"HTTP/1.1 200 ")


def test_full_queue_is_answered_with_503(serve: Serve, connect: Connect, app: Recorder) -> None:
    server = serve("api_workers = 1\n")
    app.go_on.clear()
    # One runs and 128 wait; the server reads them in any order.
    accepted = [connect(server, GET) for _ in range(130)]
    (refused,) = eventually(lambda: select.select(accepted, [], [], 0)[0])
    accepted.remove(refused)
    refusal = answer(refused)
    assert refusal.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in refusal
    app.go_on.set()
    for client in accepted:
        assert answer(client).startswith(b"HTTP/1.1 200 ")


def test_request_whose_client_has_left_the_queue_is_not_run(
    serve: Serve, connect: Connect, app: Recorder, ends: threading.Semaphore
) -> None:
    server = serve("api_workers = 1\n")
    app.go_on.clear()
    first = connect(server, GET)
    acquired(app.arrived)
    connect(server, GET).close()
    acquired(ends)
    # Refused without a thread, in later turns of the loop than the one that saw the end.
    for _ in range(4):
        answer(connect(server, POST + b"Content-Length: 2000000\r\n\r\n"))
    last = connect(server, GET)
    app.go_on.set()
    assert answer(first).startswith(b"HTTP/1.1 200 ")
    assert answer(last).startswith(b"HTTP/1.1 200 ")
    assert len(app.requests) == 2


def test_request_whose_client_leaves_at_once_is_not_run(
    serve: Serve, connect: Connect, app: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads the end before it has passed the request on."""
    server = serve("api_workers = 1\n")
    app.go_on.clear()
    first = connect(server, GET)
    acquired(app.arrived)
    read, waits, left = IOStream.read_from_fd, threading.Semaphore(0), Gate()

    def held(stream: IOStream, buffer: bytearray | memoryview) -> int | None:
        size = read(stream, buffer)
        if size is None:
            waits.release()
        elif size == len(GET):
            left.hold()
        return size

    monkeypatch.setattr(IOStream, "read_from_fd", held)
    client = connect(server)
    # The server has read nothing yet, and listens for more.
    acquired(waits)
    client.sendall(GET)
    client.close()
    left.set()
    # Refused without a thread, in later turns of the loop.
    for _ in range(4):
        answer(connect(server, POST + b"Content-Length: 2000000\r\n\r\n"))
    app.go_on.set()
    assert answer(first).startswith(b"HTTP/1.1 200 ")
    assert is_served(server, connect)
    assert len(app.requests) == 2


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        (GET, len("nothing")),
        (GET.replace(b"/", b"/large", 1), 64 * MIB),
        (POST + b"Content-Length: 4\r\n\r\nbody", len("body")),
    ],
)
def test_client_that_closes_its_side_gets_its_answer(
    serve: Serve,
    connect: Connect,
    app: Recorder,
    ends: threading.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
    request_: bytes,
    size: int,
) -> None:
    reads, read = [], ClientStream.read_from_fd

    def counted(stream: ClientStream, buffer: bytearray | memoryview) -> int | None:
        reads.append(stream)
        return read(stream, buffer)

    monkeypatch.setattr(ClientStream, "read_from_fd", counted)
    server = serve(NEVER)
    app.go_on.clear()
    client = connect(server, request_)
    client.shutdown(socket.SHUT_WR)
    acquired(app.arrived)
    acquired(ends)
    # Refused without a thread, in later turns of the loop than the one that saw the end.
    for _ in range(4):
        answer(connect(server, POST + b"Content-Length: 2000000\r\n\r\n"))
    first = len([stream for stream in reads if stream is reads[0]])
    app.go_on.set()
    text = everything(client)
    assert text.startswith(b"HTTP/1.1 200 ")
    assert len(text.partition(b"\r\n\r\n")[2]) == size
    # The loop is not woken again and again by the end that it has seen.
    assert first < 10
    assert is_served(server, connect)


def test_client_that_leaves_while_its_request_runs_is_forgotten(
    serve: Serve, connect: Connect, app: Recorder
) -> None:
    server = serve(f"{NEVER}max_connections = 1\n")
    app.go_on.clear()
    connect(server, GET).close()
    acquired(app.arrived)
    app.go_on.set()
    # No other connection is taken until the first one is closed.
    eventually(lambda: everything(connect(server, GET[:-2] + b"Connection: close\r\n\r\n")))


def test_stopping_server_finishes_accepted_requests(
    serve: Serve, connect: Connect, app: Recorder, arrivals: threading.Semaphore
) -> None:
    server = serve("api_workers = 1\n")
    app.go_on.clear()
    idle, running, queued = connect(server, GET[:-2]), connect(server, GET), connect(server, GET)
    sending = connect(server, POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert b" 100 " in received(sending)
    acquired(app.arrived)
    # What one connection sent may arrive after what a later one did.
    for _ in (idle, running, queued, sending):
        acquired(arrivals)
    server.stop()
    assert everything(idle) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    sending.sendall(b"body")
    app.go_on.set()
    for client in (running, queued, sending):
        text = everything(client)
        assert text.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nConnection: close\r\n" in text
    server.wait()
    assert not server.alive


def test_body_and_head_reach_the_application_as_wsgi_says(
    serve: Serve, connect: Connect, app: Recorder
) -> None:
    server = serve()
    client = connect(
        server,
        b"POST /a%20b%2Fc/\xc3\xa9?x=%20 HTTP/1.1\r\nHost: cyborg:80\r\n"
        b"Content-Type: text/plain\r\nX-Two: 1\r\nX-Two: 2\r\nX_Auth_Token: forged\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n2\r\n..\r\n0\r\n\r\n",
    )
    assert answer(client).endswith(b"\r\n\r\nbody..")
    environ = app.requests[0]
    expected = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/a b%2Fc/\xc3\xa9",
        "QUERY_STRING": "x=%20",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "6",
        "HTTP_HOST": "cyborg:80",
        "HTTP_X_TWO": "1,2",
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_PORT": str(server.address[1]),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http",
    }
    assert {name: environ[name] for name in expected} == expected
    assert "HTTP_X_AUTH_TOKEN" not in environ
    assert "HTTP_TRANSFER_ENCODING" not in environ
    # The same connection serves again, also for a proxy's form of the URL.
    client.sendall(b"GET http://cyborg/v2?y HTTP/1.1\r\nHost: cyborg\r\n\r\n")
    assert answer(client).endswith(b"nothing")
    assert app.requests[1]["PATH_INFO"] == "/v2"
    assert app.requests[1]["QUERY_STRING"] == "y"
    assert "CONTENT_LENGTH" not in app.requests[1]


def test_head_has_no_body_and_old_client_is_closed(serve: Serve, connect: Connect) -> None:
    server = serve()
    head = everything(connect(server, b"HEAD / HTTP/1.0\r\n\r\n"))
    assert b"\r\nContent-Length: 7\r\n" in head
    assert head.endswith(b"\r\n\r\n")


def test_failing_application_is_answered_with_500(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve()
    client = connect(server, GET.replace(b"/", b"/fails", 1))
    assert answer(client).startswith(b"HTTP/1.1 500 ")
    (record,) = caplog.records
    assert record.exc_info
    assert is_served(server, connect)
