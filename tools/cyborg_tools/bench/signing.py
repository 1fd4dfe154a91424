# SPDX-License-Identifier: Apache-2.0
"""What signed messages cost: HMACs and bytes of one call, and how much longer the call takes.

Calls without and with signatures take turns, so that other load of the machine changes both alike.
The call does nothing: it is the one that signatures make longest in proportion.
"""

import json
import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import oslo_messaging
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg.rpc import keys
from cyborg.rpc.keys import CONTROLLER, MASTER, Key, KeyRing, Keys
from cyborg.rpc.signing import FIELD, Mode, Receiver, Request, Signer
from cyborg.tests.fixtures.broker import SweptBus
from cyborg_tools.bench.figures import SigningFigure
from cyborg_tools.bench.parts import SPAWN

_TOPIC = "bench-signing"
_SERVER = "bench"
_TIMEOUT = 30
_MODES = (Mode.OFF, Mode.REQUIRED)
#: The calls of each mode before those that are measured.
_WARM_UP = 20
_CONTEXT = {"request_id": "req-00000000-0000-0000-0000-000000000000", "sender": "cyborg-api@bench"}


def measure(directory: Path, conf: cfg.ConfigOpts, url: str, seconds: float) -> SigningFigure:
    """Measure on the broker of ``url``; the in-process bus has counts and no times.

    ``directory`` is an empty directory for the keys, ``seconds`` the duration for each mode.
    """
    path = directory / "signing-keys.json"
    keys.write(path, Keys(MASTER, CONTROLLER, (keys.generate(),)))
    hmacs, size = _counts(path)
    times: dict[Mode, list[float]] = {mode: [] for mode in _MODES}
    if not url.startswith("fake:"):
        _time(times, conf, _Place(url, directory.name, path), seconds)
    off, required = (statistics.median(times[mode]) * 1000 if times[mode] else 0 for mode in _MODES)
    ratio = required / off if off else None
    return SigningFigure(hmacs, size, len(times[Mode.OFF]), off, required, ratio)


class _CountedKey(Key):
    """A key that counts the HMACs that it computes in a list."""

    def __init__(self, key: Key, made: list[str]) -> None:
        super().__init__(key.id, key.secret)
        object.__setattr__(self, "_made", made)

    def mac(self, text: bytes) -> str:
        mac = super().mac(text)
        self._made.append(mac)  # type: ignore[attr-defined]
        return mac


class _CountedRing(KeyRing):
    """The keys of a file, counted."""

    def __init__(self, path: Path, made: list[str]) -> None:
        super().__init__(path, failed=print)
        self._made = made

    def of(self, owner: str) -> tuple[Key, ...]:
        return tuple(_CountedKey(key, self._made) for key in super().of(owner))


def _counts(path: Path) -> tuple[int, int]:
    """Return the HMACs of one call, and the bytes that both messages of it have more."""
    made: list[str] = []
    client, server = (Signer(Mode.REQUIRED, _CountedRing(path, made)) for _ in range(2))
    request = Request(_TOPIC, "echo", "1.0", {}, _CONTEXT)
    context, proof = client.sign(CONTROLLER, request)
    receiver = Receiver(_TOPIC, 0.0, lambda owner: owner == CONTROLLER)
    received = Request(_TOPIC, "echo", "1.0", {}, context)
    admitted = server.admit(received, receiver)
    assert admitted is not None
    reply = admitted.sign({"ok": None})
    client.check_reply(_TOPIC, proof, reply)
    assert context.keys() - _CONTEXT.keys() == reply.keys() - {"ok"} == {FIELD}
    pairs = ((context, _CONTEXT), (reply, {"ok": None}))
    return len(made), sum(_size(signed) - _size(plain) for signed, plain in pairs)


def _size(message: Any) -> int:
    # The envelope of oslo.messaging holds the message as a text of JSON, within JSON.
    return len(json.dumps(json.dumps(message)))


class _Place:
    """Where the calls take place: a broker, a prefix of exchanges and a file of keys."""

    def __init__(self, url: str, prefix: str, path: Path) -> None:
        self.url = url
        self.prefix = prefix
        self.path = path

    @contextmanager
    def buses(self, conf: cfg.ConfigOpts) -> Iterator[dict[Mode, SweptBus]]:
        """Connect with each mode."""
        with ExitStack() as ends:
            found = {}
            for mode in _MODES:
                conf.set_override("message_signing", mode.value)
                ends.callback(conf.clear_override, "message_signing")
                if mode is Mode.REQUIRED:
                    conf.set_override("message_signing_key_file", str(self.path))
                    ends.callback(conf.clear_override, "message_signing_key_file")
                found[mode] = SweptBus(conf, url=self.url, exchange=f"{self.prefix}-{mode.value}")
                ends.callback(found[mode].sweep)
            yield found


class _Echo:
    """An RPC endpoint that does nothing."""

    target = oslo_messaging.Target(version="1.0")

    def echo(self, _context: Any) -> dict[str, None]:
        """Answer."""
        return {"ok": None}


def _serve(pipe: "Connection[Any, Any]", place: _Place) -> None:
    """Answer the calls of both modes, in a process of its own, until the parent closes the pipe."""
    conf = configuration.prepare([], prog="bench", default_config_files=[])
    logging.disable(logging.WARNING)
    with place.buses(conf) as buses, ExitStack() as ends:
        for bus in buses.values():
            server = bus.server(_TOPIC, _SERVER, _Echo())
            server.start()
            ends.callback(server.wait)
            ends.callback(server.stop)
        pipe.send("ready")
        try:
            pipe.recv()
        except EOFError:
            return


def _time(
    times: dict[Mode, list[float]], conf: cfg.ConfigOpts, place: _Place, seconds: float
) -> None:
    """Fill in the seconds of the calls of each mode."""
    pipe, end = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(end, place))
    process.start()
    end.close()
    try:
        pipe.recv()
        with place.buses(conf) as buses:
            calls = {
                mode: bus.client(_TOPIC).prepare(timeout=_TIMEOUT).call
                for mode, bus in buses.items()
            }
            for call in calls.values():
                for _ in range(_WARM_UP):
                    call(dict(_CONTEXT), "echo")
            stop = time.perf_counter() + seconds * len(_MODES)
            order = _MODES
            while not times[Mode.OFF] or time.perf_counter() < stop:
                for mode in order:
                    started = time.perf_counter()
                    calls[mode](dict(_CONTEXT), "echo")
                    times[mode].append(time.perf_counter() - started)
                # The first of a pair finds the caches in another state than the second.
                order = order[::-1]
    finally:
        pipe.close()
        process.join(_TIMEOUT)
        process.kill()
        process.join()
