# SPDX-License-Identifier: Apache-2.0
"""Signatures of the messages on the bus: who sent a request, to whom, when, and only once.

The signature is one more entry of the context of a request (``signature``) and of its reply. Peers
of earlier releases ignore it. It is an HMAC-SHA256 of everything that the receiver uses: address,
verb, version, arguments, context, and the claim: time, nonce, ID of the key and its owner. The
entry of a request is the HMAC, a space and the claim. Its form is one text and not a mapping
because the bus packs each message in JSON twice. The key of a reply is that of its request, and the
signed text contains the nonce of the request.

Hosts may disagree about the time, and a clock may be corrected while a process runs. The time of a
request is therefore compared with the receiver's clock of this moment only. What happened earlier
in this process (its start, the arrival of a request) has an age, on the monotonic clock.
"""

import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgpack

from cyborg.rpc.keys import Key, KeyRing

LOG = logging.getLogger(__name__)

FIELD: Final = "signature"
#: The entry of a reply that refuses a request because of its time.
UNTIMELY: Final = "untimely"
#: The entries of a context that are not signed: the driver for RabbitMQ of oslo.messaging adds the
#: second one on the way. Nothing in this service reads it.
_UNSIGNED: Final = frozenset({FIELD, "client_timeout"})
#: How much the time of a request may differ from this host's clock, in seconds. It covers the time
#: that a request waits in a queue, and the difference of two clocks.
WINDOW: Final = 120.0
#: How long a request may be accepted after its arrival, in seconds: its time may be WINDOW ahead.
_MEMORY: Final = 2 * WINDOW
#: How many nonces of one sender are remembered. Beyond it, the older requests are refused.
_MOST_NONCES: Final = 40_000
#: How many senders with one key have a memory of their own; the others share one.
_MOST_SENDERS: Final = 64
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

    @property
    def kind(self) -> str:
        """Return what refusals with the same reason have in common."""
        return str(self)


@dataclass(frozen=True)
class TimeRefusal:
    """Why the time of a genuine request is refused.

    ``receiver`` is the host that refuses, and ``ahead_ms`` by how much the time of the request was
    ahead of the clock of this host. The host accepts the request with the time ``retry_ms``; None:
    the clocks differ by more than ``WINDOW``, and one of them must be corrected.
    """

    receiver: str
    ahead_ms: int
    retry_ms: int | None = None

    @property
    def difference(self) -> str:
        """Return the difference as a clause, for example "600 s ahead of control-1"."""
        side = "ahead of" if self.ahead_ms > 0 else "behind"
        return f"{abs(self.ahead_ms) / 1000:.0f} s {side} {self.receiver}"

    def reply(self) -> dict[str, Any]:
        """Return the reply to the request, without its signature."""
        return {UNTIMELY: [self.receiver, self.ahead_ms, self.retry_ms]}

    @classmethod
    def read(cls, reply: Any) -> "TimeRefusal | None":
        """Return the refusal that a reply is; None for every other reply."""
        match reply.get(UNTIMELY) if isinstance(reply, Mapping) else None:
            case [str(receiver), int(ahead_ms), int() | None as retry_ms]:
                return cls(receiver[:_LONGEST_NAME], ahead_ms, retry_ms)
        return None


class Untimely(Refused):
    """A genuine request whose time is refused; ``reply`` is what its sender gets.

    ``sender`` is the process that has sent it, as ``program@host``, where that is known.
    """

    def __init__(
        self, refusal: TimeRefusal, *, sender: str = "", reply: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(
            f"its clock is {refusal.difference}"
            if refusal.retry_ms is None
            else "it may have been received before"
        )
        self.refusal = refusal
        self.sender = sender
        self.reply = reply or {}

    @property
    def kind(self) -> str:
        """See Refused."""
        return f"time {self.sender}"


class UnknownKey(Refused):
    """A message whose key is not in the file of this process; it names the owner and the key."""

    def __init__(self, owner: str, key_id: str) -> None:
        super().__init__("its key is not in the file of this process")
        self.owner = owner
        self.key_id = key_id


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


@dataclass
class _Received:
    """The nonces of one sender, oldest first, and the latest one that was dropped too early.

    ``floor`` is its time in milliseconds by the sender's clock, ``raised`` when it was dropped.
    """

    nonces: dict[str, tuple[int, float]] = field(default_factory=dict)
    floor: int = -1
    raised: float = 0.0


class Replays:
    """The nonces of the requests that could be accepted again, by the owner of the key and sender.

    The memory is bounded for each sender: when it is full, the oldest nonce is dropped, and
    requests that are not newer than that one are refused. So a sender that sends too much, or whose
    clock is ahead, harms no other. Only nonces of verified requests belong here. Any thread may
    call. ``now`` is a time in seconds of the monotonic clock.
    """

    def __init__(self, memory: float = _MEMORY, most: int = _MOST_NONCES) -> None:
        self._memory = memory
        self._most = most
        self._lock = threading.Lock()
        self._received: dict[str, dict[str, _Received]] = {}

    def add(self, owner: str, sender: str, nonce: str, *, sent_ms: int, now: float) -> int | None:
        """Remember a request; raise Refused if it was seen.

        If it may have been seen, return the time that its repetition must have; else None.
        """
        with self._lock:
            senders = self._received.setdefault(owner, {})
            if len(senders) >= _MOST_SENDERS:
                sender = sender if sender in senders else ""
            received = senders.setdefault(sender, _Received())
            nonces = received.nonces
            if nonce in nonces:
                raise Refused("it was received before")
            while nonces:
                dropped_ms, arrived = nonces[next(iter(nonces))]
                is_old = now - arrived > self._memory
                if not is_old and len(nonces) < self._most:
                    break
                del nonces[next(iter(nonces))]
                if not is_old:
                    received.floor, received.raised = max(dropped_ms, received.floor), now
            if now - received.raised > self._memory:
                received.floor = -1
            if sent_ms <= received.floor:
                return received.floor + 1
            nonces[nonce] = sent_ms, now
        return None


@dataclass(frozen=True)
class Receiver:
    """A server that receives requests.

    ``host`` is its host, and ``began`` when it began to receive, on the clock of the signer. What
    was sent before may have been received by an earlier process. ``accepts`` tells whether the
    owner of a key may send to this server. ``agents`` tells that the owner is the sender.
    """

    host: str
    began: float
    accepts: Callable[[str], bool]
    agents: bool = False


class Signer:
    """Signs and verifies the messages of one process, as ``mode`` requires.

    Without keys nothing is signed, and nothing can be verified. ``now`` returns the time of this
    host in seconds, and ``clock`` the seconds of a monotonic clock.
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
        self.clock = clock
        self._replays = Replays()
        self._packer = _Packer()
        self._logged: dict[str, float] = {}

    def sign(
        self, owner: str, request: Request, *, time_ms: int | None = None
    ) -> tuple[dict[str, Any], Proof | None]:
        """Return the context to send, and what verifies the reply; None without a key.

        ``time_ms`` is the time of the request in milliseconds if it is not that of this host.
        """
        keys = self._keys.of(owner) if self._keys else ()
        if not keys:
            return dict(request.context), None
        key, nonce = keys[0], os.urandom(_NONCE_BYTES).hex()
        sent_ms = int(self._now() * 1000) if time_ms is None else time_ms
        claim = f"{sent_ms} {nonce} {key.id} {owner}"
        signature = f"{self._packer.mac(key, request.signed(claim))} {claim}"
        return {**request.context, FIELD: signature}, Proof(key, nonce, owner, self._packer)

    def admit(self, request: Request, receiver: Receiver) -> Proof | None:
        """Return what signs the reply to a request; None for a request that cannot be verified.

        In the mode REQUIRED the method raises Refused instead of returning None, and Untimely for a
        genuine request; in the mode WARN it logs the reason.
        """
        try:
            return self._verified(request, receiver)
        except Refused as refusal:
            self._report(f"Message {request.verb} to {request.address}", request.context, refusal)
            if self.mode is Mode.REQUIRED:
                raise
            return None

    def knows(self, unknown: UnknownKey) -> bool:
        """Return whether the file of this process has the key by now."""
        return self._keys is not None and self._keys.find(unknown.owner, unknown.key_id) is not None

    def check_reply(self, peer: str, proof: Proof | None, reply: Any) -> None:
        """Raise Refused for a reply that is not signed by the receiver of the request.

        The mode WARN only logs it, and the mode OFF accepts every reply. Raises Untimely for a
        reply that refuses the request because of its time.
        """
        try:
            if self.mode is not Mode.OFF:
                if proof is None:
                    raise Refused("this process has no key for the request")
                proof.verify(reply)
        except Refused as refusal:
            self._report(f"Reply of {peer}", {}, refusal)
            if self.mode is Mode.REQUIRED:
                raise
        refused = TimeRefusal.read(reply)
        if refused is not None:
            raise Untimely(refused)

    def _verified(self, request: Request, receiver: Receiver) -> Proof:
        given = request.context.get(FIELD)
        if given is None:
            raise Refused("it has no signature")
        mac, claim, sent_ms, nonce, key_id, owner = _fields(given)
        if not receiver.accepts(owner):
            raise Refused("its key must not be used for this topic")
        key = self._keys.find(owner, key_id) if self._keys else None
        if key is None:
            raise UnknownKey(owner, key_id)
        try:
            is_genuine = _equal(mac, self._packer.mac(key, request.signed(claim)))
        except (ValueError, TypeError, RecursionError):
            # These are not the arguments of any sender: MessagePack has no form for them.
            is_genuine = False
        if not is_genuine:
            raise Refused("its signature is wrong")
        proof = Proof(key, nonce, owner, self._packer)
        self._check_time(request, proof, sent_ms, receiver)
        return proof

    def _check_time(self, request: Request, proof: Proof, sent_ms: int, receiver: Receiver) -> None:
        """Remember a genuine request; raise Untimely or Refused if it may be a repetition."""
        now_ms, now = int(self._now() * 1000), self.clock()
        sender = "" if receiver.agents else _sender(request.context)
        retry_ms: int | None = now_ms
        if abs(sent_ms - now_ms) > WINDOW * 1000:
            retry_ms = None
        elif sent_ms >= now_ms - int((now - receiver.began) * 1000):
            retry_ms = self._replays.add(proof.owner, sender, proof.nonce, sent_ms=sent_ms, now=now)
            if retry_ms is None:
                return
        refusal = TimeRefusal(receiver.host, sent_ms - now_ms, retry_ms)
        reply = proof.sign(refusal.reply())
        raise Untimely(refusal, sender=sender or proof.owner, reply=reply)

    def _report(self, what: str, context: Mapping[str, Any], refusal: Refused) -> None:
        """Log a refusal, at most one per reason and minute: a sender must not fill the log."""
        now, reason = self.clock(), str(refusal)
        last = self._logged.get(refusal.kind)
        if self.mode is Mode.OFF or (last is not None and now - last < _LOG_INTERVAL):
            return
        self._logged[refusal.kind] = now
        LOG.warning(
            "%s %s: %s (sender %s, mode %s). The same reason is logged once per minute.",
            what,
            "accepted without a valid signature" if self.mode is Mode.WARN else "refused",
            reason,
            ascii(_sender(context)),
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


def _sender(context: Mapping[str, Any]) -> str:
    """Return the sender that a request names, cut at a bounded length."""
    return str(context.get("sender", ""))[:_LONGEST_NAME]


def _large(number: Any) -> msgpack.ExtType:
    """Return what stands for an integer of more than 64 bits, which JSON has."""
    return msgpack.ExtType(0, str(number).encode())


def _equal(given: Any, expected: str) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, expected)
