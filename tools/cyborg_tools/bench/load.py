# SPDX-License-Identifier: Apache-2.0
"""Clients that keep their connections: one request after the other, several beside each other.

Each client is a thread with a connection of its own to a server in another process.
"""

import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from cyborg_tools.bench.figures import Samples

_PATIENCE = 60.0


class HttpClient:
    """One kept connection to ``netloc``; RuntimeError for an answer from 400 on."""

    def __init__(self, netloc: str) -> None:
        self._connection = http.client.HTTPConnection(netloc, timeout=_PATIENCE)
        self._connection.connect()
        # Headers and body are written apart: without this a small body waits for an ACK.
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, method: str, path: str, body: Any = None) -> bytes:
        """The body of the answer."""
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if content else {}
        self._connection.request(method, path, content, headers)
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {found[:500]!r}")
        return found


def repeated(
    netloc: str, acts: Sequence[Callable[[HttpClient], object]], seconds: float, least: int = 3
) -> Samples:
    """Have a client repeat each action for some time, at least so often; all start together.

    The first run of each is not measured.
    """
    together = threading.Barrier(len(acts) + 1)
    times: list[list[float]] = [[] for _ in acts]
    faults: list[Exception] = []

    def client(act: Callable[[HttpClient], object], mine: list[float]) -> None:
        try:
            http_client = HttpClient(netloc)
            act(http_client)
            together.wait(_PATIENCE)
            end = time.perf_counter() + seconds
            while len(mine) < least or time.perf_counter() < end:
                started = time.perf_counter()
                act(http_client)
                mine.append(time.perf_counter() - started)
        except (RuntimeError, OSError, http.client.HTTPException) as fault:
            faults.append(fault)
            together.abort()

    threads = [
        threading.Thread(target=client, args=(act, mine), daemon=True)
        for act, mine in zip(acts, times, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        together.wait(_PATIENCE)
    except threading.BrokenBarrierError as broken:
        raise (faults[0] if faults else RuntimeError("a client did not start")) from broken
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return Samples(list(itertools.chain(*times)), time.perf_counter() - started)


def getting(path: str) -> Callable[[HttpClient], object]:
    """Return a read."""
    return lambda client: client.send("GET", path)


def living(profile: str, host: str, provider: str) -> Callable[[HttpClient], object]:
    """Return the life cycle of an ARQ as Nova does it: create to delete."""
    return lambda client: _live(client, profile, host, provider)


def _live(client: HttpClient, profile: str, host: str, provider: str) -> None:
    collection = "/v2/accelerator_requests"
    made = json.loads(client.send("POST", collection, {"device_profile_name": profile}))
    instance = str(uuid4())
    fields = {"hostname": host, "device_rp_uuid": provider, "instance_uuid": instance}
    patch = [{"path": f"/{name}", "op": "add", "value": value} for name, value in fields.items()]
    client.send("PATCH", collection, {made["arqs"][0]["uuid"]: patch})
    bound = json.loads(client.send("GET", f"{collection}?instance={instance}"))
    if [one["state"] for one in bound["arqs"]] != ["Bound"]:
        raise RuntimeError(f"not bound: {bound}")
    client.send("DELETE", f"{collection}?instance={instance}")
