# SPDX-License-Identifier: Apache-2.0
"""Each way to serve the API withstands clients that send too slowly, too much, or no HTTP.

The configurations are those of the page "Web servers", word by word.
"""

import itertools
from contextlib import ExitStack
from pathlib import Path

import pytest

from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.edge.attacker import Target

POST = b"POST /v2/device_profiles HTTP/1.1\r\nHost: cyborg\r\nContent-Type: application/json\r\n"
#: What the API, a web server or a front answers to a bad request; 0: it closes the connection.
REFUSED = {0, 400, 408, 411, 413, 414, 431}
PIECE = bytes(65536)
#: 48 MiB.
PIECES = 768


@pytest.fixture(autouse=True)
def still_serves(target: Target):
    """Before and after each attack others are served, and the log has no traceback."""
    eventually(target.serves, lambda: target.output)
    yield
    # uWSGI serves others again after its socket-timeout.
    eventually(target.serves, lambda: target.output)
    assert "Traceback" not in target.output
    # The line of the API about each request that writes.
    assert "device_profiles: 500" not in target.output


@pytest.mark.parametrize(
    "start",
    [b"", b"GET / HTTP/1.1\r\nHost: cy", POST + b"Content-Length: 10\r\n\r\nslow"],
)
def test_slow_clients_do_not_stop_others(target: Target, start: bytes):
    with ExitStack() as held:
        for _ in range(8):
            client = held.enter_context(target.connection(silent=not start))
            client.sendall(start)
        assert target.serves()


@pytest.mark.parametrize("chunked", [True, False])
def test_large_body_is_refused_without_being_kept(target: Target, *, chunked: bool):
    before = memory(target)
    if chunked:
        head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        pieces = itertools.repeat(b"10000\r\n" + PIECE + b"\r\n", PIECES)
    else:
        head = POST + b"Content-Length: %d\r\n\r\n" % (PIECES * len(PIECE))
        pieces = itertools.repeat(PIECE, PIECES)
    assert target.status_of(head, more=pieces) in REFUSED
    assert memory(target) - before < 24 << 20


def test_endless_header_is_refused_without_being_kept(target: Target):
    before = memory(target)
    head = b"GET / HTTP/1.1\r\nHost: cyborg\r\nX-Large: "
    assert target.status_of(head, more=itertools.repeat(b"x" * 65536, 2400)) in REFUSED
    assert memory(target) - before < 24 << 20


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nnone\r\nbody\r\n0\r\n\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
        b"Content-Length: many\r\n\r\nbody",
    ],
)
def test_malformed_request_is_refused(target: Target, rest: bytes):
    assert target.status_of(POST + rest) in REFUSED


@pytest.mark.parametrize("rest", [b"Content-Length: 10\r\n\r\ncut", b"Content-Length: 10\r\n\r\n"])
def test_cut_body_leaves_no_traceback(target: Target, rest: bytes):
    with target.connection() as client:
        client.sendall(POST + rest)


@pytest.mark.parametrize("values", [1_001, 300_000])
def test_long_list_in_query_is_refused(target: Target, values: int):
    path = b"/v2/accelerator_requests?arqs=" + b",".join([b"a" * 32] * values)
    status = target.status_of(b"DELETE " + path + b" HTTP/1.1\r\nHost: cyborg\r\n\r\n")
    assert status in REFUSED
    assert values > 2000 or status == 400


def memory(target: Target) -> int:
    """The memory of the programs and their children, in bytes."""
    return sum(_resident(program.pid) for program in target.programs)


def _resident(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = int(fields[1].split()[0]) * 1024 if len(fields) > 1 else 0
    return own + sum(_resident(int(child)) for child in children)
