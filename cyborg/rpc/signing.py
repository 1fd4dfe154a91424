# SPDX-License-Identifier: Apache-2.0
"""Signatures of the messages on the bus: who sent a request, to whom, when, and only once.

The signature is one more entry of the context of a request (``signature``) and of its reply. Peers
of earlier releases ignore it. It is an HMAC-SHA256 of everything that the receiver uses: address,
verb, version, arguments, context, and the claim: time, nonce, ID of the key and its owner. The
entry of a request is the HMAC, a space and the claim. Its form is one text and not a mapping
because the bus packs each message in JSON twice. The key of a reply is that of its request, and the
signed text contains the nonce of the request.
"""

import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgpack

from cyborg.rpc.keys import Key, KeyRing

LOG = logging.getLogger(__name__)

FIELD: Final = "signature"
#: The entries of a context that are not signed: the driver for RabbitMQ of oslo.messaging adds the
#: second one on the way. Nothing in this service reads it.
_UNSIGNED: Final = frozenset({FIELD, "client_timeout"})
#: How much the time of a request may differ from this host's clock, in seconds. It covers the time
#: that a request waits in a queue, and the difference of two clocks.
WINDOW: Final = 120.0
#: How many nonces of one owner are remembered. Beyond it, the older requests are refused.
_MOST_NONCES: Final = 20_000
#: How often one reason of a refusal is logged, in seconds.
_LOG_INTERVAL: Final = 60.0
_NONCE_BYTES: Final = 16
#: The longest name in the log, and the longest signature of a request, in characters.
_LONGEST_NAME: Final = 255
_LONGEST: Final = 600
#: The time of a request in milliseconds.
_TIME: Final = re.compile(r"[0-9]{1,15}")


class Mode(Enum):
    """What a receiver does with a message whose signature is missing or wrong."""

    OFF = "off"
    WARN = "warn"
    REQUIRED = "required"


class Refused(Exception):
    """A message whose signature is missing or wrong; its text is the reason."""


@dataclass(frozen=True)
class Request:
    """What the signature of a request covers besides the claim of its sender."""

    address: str
    verb: str
    version: str
    arguments: Mapping[str, Any]
    context: Mapping[str, Any]

    def signed(self, claim: str) -> list[Any]:
        """Return all that is signed; ``claim`` has the time in milliseconds, nonce, key, owner."""
        context = {**self.context}
        for name in _UNSIGNED:
            context.pop(name, None)
        head = "request", claim, self.address, self.verb, self.version
        return [head, self.arguments, context]


class _Packer:
    """Packs what is signed; any thread may call.

    MessagePack takes a fifth of the time of JSON. Both keep the order of the keys of a message. One
    packer serves all messages of a process: to get the buffer of a new packer takes a thread longer
    than all the rest of a signature.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packer = msgpack.Packer(default=_large, unicode_errors="surrogatepass")

    def mac(self, key: Key, content: list[Any]) -> str:
        """Return the HMAC of what is signed; raises ValueError, TypeError or RecursionError."""
        with self._lock:
            text = self._packer.pack(content)
        return key.mac(text)


@dataclass(frozen=True)
class Proof:
    """The key and the nonce of a request that was signed or verified; they sign its reply."""

    key: Key
    nonce: str
    owner: str
    packer: _Packer

    def sign(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return a reply with its signature."""
        return {**reply, FIELD: self._mac(reply)}

    def verify(self, reply: Any) -> None:
        """Raise Refused unless a reply answers this request and has the key of its receiver."""
        body = {**reply} if isinstance(reply, Mapping) else {}
        given = body.pop(FIELD, None)
        if given is None:
            raise Refused("the reply has no signature")
        if not _equal(given, self._mac(body)):
            raise Refused("the signature of the reply is wrong")

    def _mac(self, reply: Mapping[str, Any]) -> str:
        return self.packer.mac(self.key, [("reply", self.nonce), reply])


class Replays:
    """The nonces that were seen within the window, by the owner of the key.

    The memory is bounded for each owner: when it is full, the oldest nonce is dropped, and requests
    that are not newer than that one are refused from then on. So an owner that sends too much
    harms no other. Only nonces of verified requests belong here. Any thread may call.
    """

    def __init__(self, window: float = WINDOW, most: int = _MOST_NONCES) -> None:
        self._window_ms = int(window * 1000)
        self._most = most
        self._lock = threading.Lock()
        self._seen: dict[str, dict[str, int]] = {}
        self._floors: dict[str, int] = {}

    def add(self, owner: str, sent_ms: int, nonce: str, now_ms: int) -> None:
        """Remember a request; raise Refused if it was seen, or may have been."""
        with self._lock:
            seen = self._seen.setdefault(owner, {})
            while seen:
                first = next(iter(seen))
                if seen[first] >= now_ms - self._window_ms and len(seen) < self._most:
                    break
                dropped = seen.pop(first)
                self._floors[owner] = max(dropped, self._floors.get(owner, dropped))
            if nonce in seen or sent_ms <= self._floors.get(owner, -1):
                raise Refused("it was received before")
            seen[nonce] = sent_ms


class Signer:
    """Signs and verifies the messages of one process, as ``mode`` requires.

    Without keys nothing is signed, and nothing can be verified. ``now`` returns the time of this
    host in seconds.
    """

    def __init__(
        self,
        mode: Mode,
        keys: KeyRing | None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode = mode
        self._keys = keys
        self._now = now
        self._clock = clock
        self._replays = Replays()
        self._packer = _Packer()
        self._logged: dict[str, float] = {}

    def sign(self, owner: str, request: Request) -> tuple[dict[str, Any], Proof | None]:
        """Return the context to send, and what verifies the reply; None without a key."""
        keys = self._keys.of(owner) if self._keys else ()
        if not keys:
            return dict(request.context), None
        key, nonce = keys[0], os.urandom(_NONCE_BYTES).hex()
        claim = f"{int(self._now() * 1000)} {nonce} {key.id} {owner}"
        signature = f"{self._packer.mac(key, request.signed(claim))} {claim}"
        return {**request.context, FIELD: signature}, Proof(key, nonce, owner, self._packer)

    def admit(
        self, request: Request, accepts: Callable[[str], bool], *, since_ms: int = 0
    ) -> Proof | None:
        """Return what signs the reply to a request; None for a request that cannot be verified.

        ``accepts`` tells whether the owner of a key may send to this address. A request from before
        ``since_ms`` may have been received by an earlier process. In the mode REQUIRED the method
        raises Refused instead of returning None; in the mode WARN it logs the reason.
        """
        try:
            return self._verified(request, accepts, since_ms)
        except Refused as refusal:
            self._report(f"Message {request.verb} to {request.address}", request.context, refusal)
            if self.mode is Mode.REQUIRED:
                raise
            return None

    def check_reply(self, peer: str, proof: Proof | None, reply: Any) -> None:
        """Raise Refused for a reply that is not signed by the receiver of the request.

        The mode WARN only logs it, and the mode OFF accepts every reply.
        """
        if self.mode is Mode.OFF:
            return
        try:
            if proof is None:
                raise Refused("this process has no key for the request")
            proof.verify(reply)
        except Refused as refusal:
            self._report(f"Reply of {peer}", {}, refusal)
            if self.mode is Mode.REQUIRED:
                raise

    def _verified(self, request: Request, accepts: Callable[[str], bool], since_ms: int) -> Proof:
        given = request.context.get(FIELD)
        if given is None:
            raise Refused("it has no signature")
        mac, claim, sent_ms, nonce, key_id, owner = _fields(given)
        if not accepts(owner):
            raise Refused("its key must not be used for this topic")
        key = self._keys.find(owner, key_id) if self._keys else None
        if key is None:
            raise Refused("its key is not in the file of this process")
        try:
            is_genuine = _equal(mac, self._packer.mac(key, request.signed(claim)))
        except (ValueError, TypeError, RecursionError):
            # These are not the arguments of any sender: MessagePack has no form for them.
            is_genuine = False
        if not is_genuine:
            raise Refused("its signature is wrong")
        now_ms = int(self._now() * 1000)
        if abs(now_ms - sent_ms) > WINDOW * 1000:
            raise Refused(f"its time differs from the clock of this host by more than {WINDOW:g} s")
        if sent_ms < since_ms:
            raise Refused("it is older than this process")
        self._replays.add(owner, sent_ms, nonce, now_ms)
        return Proof(key, nonce, owner, self._packer)

    def _report(self, what: str, context: Mapping[str, Any], refusal: Refused) -> None:
        """Log a refusal, at most one per reason and minute: a sender must not fill the log."""
        now, reason = self._clock(), str(refusal)
        last = self._logged.get(reason)
        if self.mode is Mode.OFF or (last is not None and now - last < _LOG_INTERVAL):
            return
        self._logged[reason] = now
        LOG.warning(
            "%s %s: %s (sender %s, mode %s). The same reason is logged once per minute.",
            what,
            "accepted without a valid signature" if self.mode is Mode.WARN else "refused",
            reason,
            ascii(str(context.get("sender", "")))[:_LONGEST_NAME],
            self.mode.value,
        )


def _fields(given: Any) -> tuple[str, str, int, str, str, str]:
    """Return HMAC, claim, time, nonce, ID of the key and owner of a signature.

    Raises Refused for everything that is not the text of a signature.
    """
    if isinstance(given, str) and len(given) <= _LONGEST:
        mac, _, claim = given.partition(" ")
        fields = claim.split(" ", 3)
        if len(fields) == 4 and _TIME.fullmatch(fields[0]):
            time_ms, nonce, key_id, owner = fields
            return mac, claim, int(time_ms), nonce, key_id, owner
    raise Refused("its signature is malformed")


def _large(number: Any) -> msgpack.ExtType:
    """Return what stands for an integer of more than 64 bits, which JSON has."""
    return msgpack.ExtType(0, str(number).encode())


def _equal(given: Any, expected: str) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, expected)
