# SPDX-License-Identifier: Apache-2.0
"""The client of SPDK and the exchange below it, on real sockets with servers that misbehave."""

import errno
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg import exception
from cyborg.drivers import unix_socket
from cyborg.drivers.host import LocalHost
from cyborg.drivers.spdk_client import SpdkClient
from cyborg.testing.recorder import RecordingHost
from cyborg.tests.fixtures.waiting import PATIENCE, Gate
from cyborg.tests.unit.drivers.simulated_spdk import Script, SimulatedSpdk, SpdkSocket, in_pieces

#: The limit of a call that gets no answer, in seconds.
TIMEOUT = 0.3
CAP = 100_000
Served = Callable[..., SpdkClient]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve a socket with a script, and return a client of it."""
    with ExitStack() as stack:

        def serve(script: Script, timeout: float = PATIENCE) -> SpdkClient:
            server = stack.enter_context(SpdkSocket(tmp_path, script))
            return client_of(server.path, timeout)

        yield serve


def client_of(path: str, timeout: float = PATIENCE) -> SpdkClient:
    return SpdkClient(LocalHost(), path, timeout=timeout, cap=CAP)


def saying(text: bytes) -> Script:
    """Return a script that sends this text, whatever the request is."""
    return lambda connection, request: connection.sendall(text)


def failure(client: SpdkClient) -> exception.HostError:
    """Return the error of a call."""
    with pytest.raises(exception.HostError) as caught:
        client.call("spdk_get_version")
    return caught.value


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_answer_in_pieces_is_read_to_its_end(served: Served, size: int) -> None:
    client = served(in_pieces(SimulatedSpdk().answer, size))
    (bdev,) = client.entries("bdev_get_bdevs")
    assert bdev["name"] == "Nvme0n1"


def test_piece_that_ends_with_an_inner_object_is_not_the_answer(served: Served) -> None:
    def script(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b'{"jsonrpc": "2.0", "id": 1, "result": {"inner": {"a": 1}')
        # The client has read the first piece when it has got this one, or both together.
        connection.sendall(b"}}")

    assert served(script).call("any") == {"inner": {"a": 1}}


def test_answer_with_white_space_and_split_letters_is_read(served: Served) -> None:
    text = '\n {"jsonrpc": "2.0", "id": 1, "result": "Gerät}"}\n'.encode()
    assert served(in_pieces(lambda request: text, 1)).call("any") == "Gerät}"


def test_each_call_has_a_number_and_a_connection_of_its_own(served: Served) -> None:
    requests: list[bytes] = []

    def script(connection: socket.socket, request: bytes) -> None:
        requests.append(request)
        number = json.loads(request)["id"]
        first = json.dumps({"jsonrpc": "2.0", "id": number, "result": number}).encode()
        # A late answer to a call that nobody waits for any more.
        connection.sendall(first + b'{"jsonrpc": "2.0", "id": 99, "result": "late"}')

    client = served(script)
    assert [client.call("any"), client.call("any", name="x")] == [1, 2]
    assert [json.loads(request) for request in requests] == [
        {"jsonrpc": "2.0", "id": 1, "method": "any"},
        {"jsonrpc": "2.0", "id": 2, "method": "any", "params": {"name": "x"}},
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "is not a JSON object"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe\x00", "is not a JSON object"),
        (b'{"jsonrpc": "2.0", "id": 7, "result": true}', "it is the answer to another request"),
        (b'{"jsonrpc": "2.0", "result": true}', "it is the answer to another request"),
        (b'{"jsonrpc": "2.0", "id": 1}', "the answer has no result"),
        (b'{"id": 1, "result": ' + b"[" * 50_000, "no complete answer within 0.3 seconds"),
        (b'{"id": 1, "result": "' + b"x" * CAP, "more than 100000 bytes"),
        (b'{"id": 1, "resu', "no complete answer within 0.3 seconds"),
        (b'{"id"}', "no complete answer within 0.3 seconds"),
        (b"", "no complete answer within 0.3 seconds"),
    ],
)
def test_answer_that_is_none_is_an_error(served: Served, text: bytes, reason: str) -> None:
    timeout = TIMEOUT if "no complete answer" in reason else PATIENCE
    error = failure(served(saying(text), timeout))
    assert reason in str(error)
    assert "code" not in error.fields


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"code": -32601, "message": "Method not found"}, "Method not found (code -32601)"),
        ({"code": -1, "message": "Invalid\nstate"}, "Invalidstate (code -1)"),
        ({}, "None (code None)"),
    ],
)
def test_refusal_of_spdk_is_an_error_with_its_code(
    served: Served, error: dict[str, object], reason: str
) -> None:
    # SPDK answers with null when it could not read the number.
    text = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    caught = failure(served(saying(text)))
    assert str(caught) == f"SPDK method spdk_get_version failed: {reason}"
    assert caught.fields["code"] == error.get("code")


def test_method_that_spdk_does_not_have_lists_nothing(served: Served) -> None:
    client = served(in_pieces(SimulatedSpdk().answer, 64))
    assert client.entries("ublk_get_disks") == []


@pytest.mark.parametrize("result", ["true", "{}", "[1]", "null"])
def test_result_that_is_no_list_of_objects_is_an_error(served: Served, result: str) -> None:
    client = served(saying(f'{{"jsonrpc": "2.0", "id": 1, "result": {result}}}'.encode()))
    with pytest.raises(exception.HostError, match="not a list of objects"):
        client.entries("bdev_get_bdevs")


@pytest.mark.parametrize("text", [b"", b'{"jsonrpc": "2.0", '])
def test_connection_that_ends_too_early_is_an_error(served: Served, text: bytes) -> None:
    def script(connection: socket.socket, request: bytes) -> None:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_RDWR)

    assert "was closed before the answer was complete" in str(failure(served(script)))


def test_piece_of_an_answer_does_not_prolong_the_limit(tmp_path: Path) -> None:
    gate = Gate()

    def script(connection: socket.socket, request: bytes) -> None:
        connection.sendall(b"{")
        gate.hold()
        connection.sendall(b"}")

    def clock() -> Iterator[float]:
        yield 0.0
        yield 0.0
        # The first piece was read.
        gate.set()
        yield PATIENCE

    with (
        SpdkSocket(tmp_path, script) as server,
        pytest.raises(exception.HostError, match="no complete answer within"),
    ):
        unix_socket.exchange(
            *(server.path, b"{}", lambda text: text == b"{}"),
            timeout=PATIENCE,
            cap=CAP,
            clock=clock().__next__,
        )


def test_server_that_never_accepts_is_given_up(tmp_path: Path) -> None:
    path = str(tmp_path / "spdk.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        assert "no complete answer" in str(failure(client_of(path, TIMEOUT)))


def test_server_that_takes_no_further_connection_is_an_error_at_once(tmp_path: Path) -> None:
    """Its queue is full; a connection without a limit would wait for ever."""
    path = str(tmp_path / "spdk.sock")
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(path)
        server.listen(0)
        result = 0
        while result == 0:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            result = waiting.connect_ex(path)
        assert failure(client_of(path)).fields["errno"] == errno.EAGAIN


def test_socket_without_a_server_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = str(tmp_path / "spdk.sock")
    assert not client_of(path).is_there()
    assert failure(client_of(path)).fields["errno"] == errno.ENOENT
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    assert client_of(path).is_there()
    assert failure(client_of(path)).fields["errno"] == errno.ECONNREFUSED


@pytest.mark.parametrize("path", ["/tmp/a\0b", "/" + "x" * 200])
def test_path_that_is_none_of_a_socket_is_an_error(path: str) -> None:
    failure(client_of(path))


def test_socket_is_below_the_root_of_the_host(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    with SpdkSocket(place, in_pieces(SimulatedSpdk().answer, 64)):
        host = LocalHost(str(tmp_path))
        client = SpdkClient(host, "/run/spdk.sock", timeout=PATIENCE, cap=CAP)
        assert client.call("spdk_get_version")["version"] == "SPDK v25.05"


def test_recording_sends_nothing(tmp_path: Path) -> None:
    spdk = SimulatedSpdk()
    with SpdkSocket(tmp_path, in_pieces(spdk.answer, 64)) as server:
        client = SpdkClient(RecordingHost(), server.path, timeout=PATIENCE, cap=CAP)
        with pytest.raises(exception.HostError, match="a recording asks no program"):
            client.call("spdk_get_version")
    assert spdk.requests == []
