# SPDX-License-Identifier: Apache-2.0
"""One process's connection to the bus, and bounded calls over it.

oslo.messaging blocks far beyond a call's timeout while the broker is away. An ``RPCClient``
therefore makes each call in a thread of its own and waits only for the timeout. Before each call to
any server of a topic it asks the broker whether one listens. After a call that reached no server,
it raises Unavailable at once until a ping in the background gets an answer.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import oslo_messaging
from opentelemetry.trace import SpanKind
from oslo_config import cfg
from oslo_messaging import opts
from oslo_messaging.rpc.server import RPCServer

from cyborg import exception, tracing
from cyborg.context import REQUEST_ID, ids, working_for
from cyborg.model.process import BusFault
from cyborg.rpc import command, rabbit, signing, verbs
from cyborg.rpc.endpoint import unwrap
from cyborg.rpc.keys import CONTROLLER, GRACE, HOST, KeyRing
from cyborg.rpc.threads import in_thread

LOG = logging.getLogger(__name__)

EXCHANGE = "cyborg"
#: From the API to any conductor.
CONDUCTOR_TOPIC = "cyborg-conductor"
#: From agents to any conductor.
CONDUCTOR_AGENTS_TOPIC = rabbit.CONDUCTOR_AGENTS_TOPIC
#: From a conductor to the agent of one host.
AGENT_TOPIC = "cyborg-agent"

#: How long the first request of a process may wait for the first connection, in seconds.
_FIRST_CONNECTION = 3.0
#: How much longer than its timeout a caller waits for a call, in seconds.
_GRACE_SECONDS = 1.0
#: Pauses between attempts to use a broker that refuses, in seconds: the first, the longest.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0
#: How long the end of a process may wait for its connections to be closed, in seconds.
_CLOSING = 5.0
_PING_TIMEOUT = 5.0
#: The verb that shows whether a server listens. It tells nothing else, and is never signed.
PING: Final = "ping"
#: The entry of a request's context that names the process that sends it.
SENDER: Final = "sender"
#: The broker must report a ping for which there is no queue. Otherwise the first conductor of a new
#: broker would be found only after the previous ping has timed out. (The broker's Ack follows. It
#: does not confuse the next message of that channel: py-amqp reads all input before it publishes.)
_MANDATORY: Final = oslo_messaging.TransportOptions(at_least_once=True)
#: After how many refusals because of the clock, and no other outcome, a call fails.
_MOST_WRONG_CLOCKS = 3
#: The shortest timeout of a call, in seconds.
_SHORTEST = 0.1
#: The pause before a call is repeated whose server cannot use its database, in seconds.
_ELSEWHERE = 0.25
#: How long a server with a call may send nothing, in seconds; a working server sends heartbeats.
#: A stopping server of oslo.messaging loses the calls that arrive while its last calls end (its
#: consumer takes them from RabbitMQ and does not process them). The caller then repeats them.
_SILENCE = 5.0

#: The exceptions of a server of another release that does not have a verb, or its version.
_UNKNOWN = frozenset({"NoSuchMethod", "UnsupportedVersion"})


class _Gate:
    """Verifies the signatures of the requests to one server of a topic.

    On the topic of the agents a verified sender is the agent of the host whose key has signed,
    whatever the request says.
    """

    def __init__(self, signer: signing.Signer, *, topic: str, prefix: str, server: str) -> None:
        self._signer = signer
        self._from_agents = topic == CONDUCTOR_AGENTS_TOPIC
        to_agent = topic == AGENT_TOPIC
        self.address = _address(prefix + topic, server if to_agent else None)
        self._owner = server if to_agent else CONTROLLER
        # Requests that waited in a queue for the restart of this process are refused; their senders
        # learn it, and repeat them.
        self._receiver = signing.Receiver(
            server, signer.clock(), self._accepts, agents=self._from_agents
        )
        self._to_agent = to_agent
        #: The refusal of the last request to this agent, and its time; None: it was admitted.
        self._unknown: tuple[signing.UnknownKey, float] | None = None

    def admit(
        self, context: dict[str, Any], message: dict[str, Any]
    ) -> tuple[dict[str, Any], signing.Proof | None]:
        """Return the context with the verified sender, and what signs the reply.

        Raises signing.Refused, and signing.Untimely for a genuine request.
        """
        verb = str(message.get("method"))
        if verb == PING:
            return context, None
        request = signing.Request(
            self.address, verb, message.get("version", ""), message.get("args", {}), context
        )
        try:
            proof = self._signer.admit(request, self._receiver)
        except signing.Untimely as refusal:
            if self._from_agents:
                refusal.sender = f"{AGENT_TOPIC}@{refusal.sender}"
            raise
        except signing.UnknownKey as refusal:
            if self._to_agent:
                since = self._unknown[1] if self._unknown else time.monotonic()
                self._unknown = refusal, since
            raise
        self._unknown = None
        if proof is not None and self._from_agents:
            context = {**context, SENDER: f"{AGENT_TOPIC}@{proof.owner}"}
        return context, proof

    def trouble(self) -> BusFault | None:
        """Return why this agent refuses the requests of conductors; None while it admits them.

        Conductors sign with a key that the agent's file does not have, as after ``promote`` before
        the host has its new file.
        """
        unknown = self._unknown
        if unknown is None or self._signer.knows(unknown[0]):
            return None
        reason = "its file of message signing keys lacks the key with which conductors sign"
        return BusFault(reason, unknown[1])

    def _accepts(self, owner: str) -> bool:
        return owner != CONTROLLER if self._from_agents else owner == self._owner


class _Dispatcher(oslo_messaging.RPCDispatcher):
    """Dispatch calls with the request id of the caller, so that log lines name it.

    Unverified requests and unknown verbs are refused with one log line; oslo.messaging would log a
    traceback.
    """

    def __init__(
        self, endpoint: object, gate: _Gate, *, note_clock: Callable[[str, str], None] | None
    ) -> None:
        super().__init__([endpoint], None, oslo_messaging.DefaultRPCAccessPolicy)
        self._gate = gate
        self._note_clock = note_clock

    def dispatch(self, incoming: Any) -> Any:
        """Dispatch a call in the context of its caller; see the parent."""
        verb, kind = incoming.message.get("method"), SpanKind.SERVER
        try:
            context, proof = self._gate.admit(incoming.ctxt, incoming.message)
        except signing.Untimely as untimely:
            if self._note_clock is not None and untimely.refusal.retry_ms is None:
                self._note_clock(untimely.sender, str(untimely))
            return untimely.reply
        except signing.Refused:
            # A sender without a key learns nothing more, and needs no thread that waits for it.
            raise oslo_messaging.ExpectedException from None
        incoming.ctxt = context
        with working_for(context), tracing.span(f"handle {verb}", kind, origin=context):
            try:
                reply = super().dispatch(incoming)
            except (oslo_messaging.NoSuchMethod, oslo_messaging.UnsupportedVersion) as refusal:
                LOG.warning("Call of a peer of another release refused: %s", refusal)
                if proof is None:
                    raise oslo_messaging.ExpectedException from None
                # An exception would carry no signature.
                unknown = exception.UnknownVerb(peer=self._gate.address, verb=str(verb))
                reply = {"error": {"type": unknown.kind, "fields": unknown.fields}}
        return reply if proof is None else proof.sign(reply)


class _SigningClient:
    """An oslo.messaging client that signs requests and verifies replies; see its ``prepare``."""

    def __init__(
        self,
        client: Any,
        signer: signing.Signer,
        listens: Callable[[], bool],
        *,
        topic: str,
        prefix: str,
        server: str | None = None,
        version: str = command.FIRST,
    ) -> None:
        self._client = client
        self._signer = signer
        self._listens = listens
        self._topic = topic
        self._prefix = prefix
        self._server = server
        self._version = version

    def prepare(self, **options: Any) -> "_SigningClient":
        """Return a client with these options; see oslo.messaging."""
        return _SigningClient(
            self._client.prepare(**options),
            self._signer,
            self._listens,
            topic=self._topic,
            prefix=self._prefix,
            server=options.get("server", self._server),
            version=options.get("version", self._version),
        )

    def call(self, context: dict[str, Any], verb: str, **arguments: Any) -> Any:
        """Return the reply of a server; raise signing.Refused for one that is not from a server.

        Raises signing.Untimely for the signed refusal of a server because of the time. A server
        that has just started may need the request with a later time, and gets it. Raises
        MessageUndeliverable, and sends nothing, if no server listens on the topic: a queue outlives
        its servers, so RabbitMQ accepts messages for it that nobody would read.
        """
        if self._server is None and not self._listens():
            raise oslo_messaging.MessageUndeliverable(None, None, None, None)
        if verb == PING:
            return self._client.call(context, verb, **arguments)
        try:
            return self._call_at(None, context, verb, arguments)
        except signing.Untimely as untimely:
            if untimely.refusal.retry_ms is None:
                raise
            return self._call_at(untimely.refusal.retry_ms, context, verb, arguments)

    def cast(self, context: dict[str, Any], verb: str, **arguments: Any) -> None:
        """Send a request without a reply."""
        context, _ = self._sign(None, context, verb, arguments)
        self._client.cast(context, verb, **arguments)

    def _call_at(
        self, time_ms: int | None, context: dict[str, Any], verb: str, arguments: dict[str, Any]
    ) -> Any:
        context, proof = self._sign(time_ms, context, verb, arguments)
        peer = _address(self._topic, self._server)
        try:
            reply = self._client.call(context, verb, **arguments)
        except oslo_messaging.RemoteError as failure:
            # A failure carries no signature; servers that verify sign a reply instead.
            self._signer.check_reply(peer, proof, failure)
            raise
        self._signer.check_reply(peer, proof, reply)
        return reply

    def _sign(
        self, time_ms: int | None, context: dict[str, Any], verb: str, arguments: dict[str, Any]
    ) -> tuple[dict[str, Any], signing.Proof | None]:
        owner = self._server or CONTROLLER
        if str(context.get(SENDER, "")).startswith(f"{AGENT_TOPIC}@"):
            owner = context[SENDER].rpartition("@")[2]
        address = _address(self._prefix + self._topic, self._server)
        request = signing.Request(address, verb, self._version, arguments, context)
        return self._signer.sign(owner, request, time_ms=time_ms)


def _address(topic: str, server: str | None) -> str:
    """Return what the signature of a request names as its receiver."""
    return f"{topic}.{server}" if server else topic


class _Server(RPCServer):
    """An RPC server whose calls run in threads of the standard library.

    The default threads, futurist's, check once a second whether to end. Until they end, the server
    takes calls from the broker that it does not answer.
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._executor_cls = ThreadPoolExecutor


class Receiver:
    """An RPC server that starts when the broker accepts it; ``make`` makes one per attempt.

    ``part`` names the server in ``troubles``; ``refusal`` returns why it refuses all requests.
    """

    def __init__(
        self,
        make: Callable[[], _Server],
        troubles: rabbit.Troubles,
        *,
        part: str,
        refusal: Callable[[], BusFault | None] = lambda: None,
    ) -> None:
        self._make = make
        self._refusal = refusal
        self._part = part
        self._troubles = troubles
        self._server: _Server | None = None
        self._began: float | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Try until the server listens or ``stop`` is called; pauses grow from 1 to 10 seconds."""
        self._began = time.monotonic()
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            server = self._make()
            try:
                server.start()
            except Exception as error:  # noqa: BLE001
                # The messaging libraries pass on the errors of the broker's driver unchanged.
                self._troubles.failed(self._part, error)
            else:
                self._server = server
                self._troubles.works(self._part)
                return
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def stop(self) -> None:
        """Accept no more requests."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()

    def wait(self) -> None:
        """Wait until all accepted requests are answered."""
        if self._server is not None:
            self._server.wait()

    @property
    def trouble(self) -> BusFault | None:
        """Return why requests are not answered; None while the server listens or is not started."""
        trouble = self._troubles.of(self._part)
        if trouble is None and self._server is not None:
            # A process that may not send cannot answer the requests that it receives.
            sender = self._troubles.of(rabbit.SENDER)
            return sender if sender is not None and sender.refused else self._refusal()
        if trouble is not None or self._began is None:
            return trouble
        # No attempt has ended yet.
        if time.monotonic() - self._began < _FIRST_CONNECTION:
            return None
        return BusFault("no connection to the message bus yet", self._began)


class Bus:
    """The transport of one process; it connects at its first use.

    ``conf`` must be the global ``cfg.CONF`` (oslo.messaging registers its options there); ``url``
    overrides ``[DEFAULT] transport_url``, ``exchange`` overrides ``[DEFAULT] control_exchange``.
    Services with different exchanges keep apart on one virtual host. ``role`` is ``api``,
    ``conductor`` or ``agent``: queues for replies have it and ``[DEFAULT] host`` in their names, as
    the permissions of the accounts at RabbitMQ require. ``now`` returns the time of this host in
    seconds, which signatures contain. ``[upgrade_levels]`` limits what is sent. Raises ConfigError
    for a URL that is not set, and for a URL or a limit that cannot be used.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        *,
        url: str | None = None,
        exchange: str | None = None,
        role: str = "api",
        now: Callable[[], float] = time.time,
    ) -> None:
        oslo_messaging.set_transport_defaults(EXCHANGE)
        # oslo.messaging registers most of its options at first use, too late to check them.
        for group, options in opts.list_opts():
            conf.register_opts(options, group=group)
        where = conf.get_location("transport_url")
        if url is None and (where is None or where.location is cfg.Locations.opt_default):
            # The library's default is RabbitMQ on this machine with the account "guest".
            raise exception.ConfigError(
                reason="[DEFAULT] transport_url is not set; it has the form "
                "rabbit://user:password@host:port/virtual_host."
            )
        try:
            self._transport = oslo_messaging.get_rpc_transport(
                conf, url=url, allowed_remote_exmods=[]
            )
        except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure) as fault:
            # The URL itself holds a password.
            raise exception.ConfigError(
                reason="[DEFAULT] transport_url cannot be used; it has the form "
                "rabbit://user:password@host:port/virtual_host."
            ) from fault
        self.troubles = rabbit.Troubles()
        self.precedence = rabbit.Precedence()
        rabbit.watch(self._transport, self.troubles, self.precedence, role=role, host=conf.host)
        self._exchange = exchange or conf.control_exchange
        # RabbitMQ names a queue by its topic alone, so the topic must contain the exchange.
        self._prefix = "" if self._exchange == EXCHANGE else f"{self._exchange}."
        levels = conf.upgrade_levels
        self._pins = {
            CONDUCTOR_TOPIC: command.pinned("conductor", levels.conductor, verbs.CONDUCTOR),
            AGENT_TOPIC: command.pinned("agent", levels.agent, verbs.AGENT),
        }
        self._pins[CONDUCTOR_AGENTS_TOPIC] = self._pins[CONDUCTOR_TOPIC]
        self._signer = _signer(conf, now)

    def server(
        self,
        topic: str,
        server: str,
        endpoint: object,
        *,
        note_clock: Callable[[str, str], None] | None = None,
    ) -> Any:
        """Return an RPC server for ``topic.server``; the caller starts and stops it.

        ``note_clock`` is called with a sender whose requests are refused because of the time, as
        ``program@host``, and a clause that tells the difference. It must not raise.
        """
        target = oslo_messaging.Target(
            exchange=self._exchange, topic=self._prefix + topic, server=server
        )
        gate = _Gate(self._signer, topic=topic, prefix=self._prefix, server=server)
        dispatcher = _Dispatcher(endpoint, gate, note_clock=note_clock)
        make = partial(_Server, self._transport, target, dispatcher, executor="threading")
        return Receiver(make, self.troubles, part=rabbit.server_part(topic), refusal=gate.trouble)

    def client(self, topic: str) -> Any:
        """Return an oslo.messaging RPC client that sends once, and nothing above the pin."""
        client = oslo_messaging.get_rpc_client(
            self._transport,
            oslo_messaging.Target(
                exchange=self._exchange, topic=self._prefix + topic, version=command.FIRST
            ),
            version_cap=self._pins.get(topic),
            retry=1,
        )
        listens = partial(rabbit.has_consumer, self._transport, self._prefix + topic)
        return _SigningClient(client, self._signer, listens, topic=topic, prefix=self._prefix)

    def close(self) -> None:
        """Close the connections; calls in progress raise Unavailable."""
        # While the broker does not answer, a thread that connects holds a lock that this needs.
        wait((in_thread(self._transport.cleanup, name="bus-close"),), _CLOSING)


class RPCClient:
    """Bounded calls to the servers of one topic.

    ``timeout`` is in seconds and applies to each attempt of ``call``. ``sender`` is the endpoint or
    the name of the caller; conductors refuse a call without it. ``later`` is the history of the
    servers' verbs, which gives each message the lowest version that it can have. Every method
    raises Unavailable if no server can be reached or if servers refuse the clock of this host,
    PinnedVersion for a message above the pin, and OutcomeUnknown if the second attempt, which has
    the same arguments and so the same request key, got no answer either. ``clock`` counts seconds,
    and ``wait`` waits for the first connection.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        *,
        peer: str,
        timeout: float,
        sender: str = "",
        later: command.Later = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._clock = clock
        self._wait = wait
        self._sender = sender
        self._later = later
        self._client = bus.client(topic)
        self._default = self._client.prepare(timeout=timeout, call_monitor_timeout=_SILENCE)
        self._peer = peer
        self._timeout = timeout
        self._up = threading.Event()
        self._lock = threading.Lock()
        self._pinger: threading.Thread | None = None
        self._since = 0.0
        self._trouble = ""
        #: Whether all servers had no database until the deadline of the last call.
        self._no_database = False
        self._closed: Future[None] = Future()

    @property
    def up(self) -> bool:
        """Return whether the last ping or call reached the peer."""
        return self._up.is_set()

    @property
    def trouble(self) -> str:
        """Return why the last ping did not reach the peer; empty while the peer is reached."""
        return "" if self._up.is_set() else self._trouble

    def reached(self) -> bool:
        """Return whether the peer is reached; the first call waits for the first connection."""
        if self._up.is_set():
            return True
        self._connect()
        patience = self._since + _FIRST_CONNECTION - self._clock()
        return self._wait(self._up, max(0.0, patience))

    def require_peer(self) -> None:
        """Raise Unavailable if the peer is not reached; see ``reached``."""
        if not self.reached():
            reason = self._trouble or "no connection over the message bus yet"
            raise exception.Unavailable(peer=self._peer, reason=reason)

    def call_until(
        self, verb: str, *, within: float, request_id: str = "", **arguments: Any
    ) -> Any:
        """Call any server of the topic, and repeat the call for ``within`` seconds if none answers.

        The repeats have the same arguments, and so the same request key. Raises Unavailable if the
        broker has refused the message or no server listens, and OutcomeUnknown only after that
        time: a message that was sent waits on the queue, and a server that starts may take it. The
        call is also repeated if the server cannot use its database: see ``_elsewhere``.
        """
        self.require_peer()
        end = self._clock() + within
        attempts, wrong_clocks, is_sent = 0, 0, False
        while True:
            attempts += 1
            left = max(end - self._clock(), _SHORTEST)
            client = self._client.prepare(timeout=left, call_monitor_timeout=_SILENCE)
            try:
                reply = self._call_once(client, verb, request_id, arguments, patience=left)
            except oslo_messaging.MessageUndeliverable:
                if not is_sent:
                    self.require_peer()
                else:
                    wait((self._closed,), min(_FIRST_PAUSE, left))
            except oslo_messaging.MessagingTimeout:
                is_sent = True
            except exception.OutcomeUnknown:
                if self._closed.done():
                    raise
                is_sent = True
            except signing.Untimely as untimely:
                wrong_clocks += 1
                if wrong_clocks == attempts == _MOST_WRONG_CLOCKS:
                    raise self._wrong_clock(untimely) from None
            else:
                try:
                    return self._body(reply, request_id)
                except exception.DatabaseUnavailable:
                    if not self._elsewhere(end):
                        raise
                    continue
            if self._clock() >= end:
                self._lost()
                raise exception.OutcomeUnknown(peer=self._peer, reason="no answer")

    def call(self, verb: str, *, request_id: str = "", **arguments: Any) -> Any:
        """Call any server of the topic; repeat a call that times out once, without a change.

        A call whose server cannot use its database is repeated for ``timeout`` seconds.
        """
        self.require_peer()
        end = self._clock() + self._timeout
        wrong_clocks = []
        attempts, is_sent = 0, False
        while attempts < 2:
            attempts += 1
            try:
                reply = self._call_once(self._default, verb, request_id, arguments)
            except oslo_messaging.MessageUndeliverable:
                if not is_sent:
                    self.require_peer()
            except oslo_messaging.MessagingTimeout:
                is_sent = True
            except signing.Untimely as untimely:
                wrong_clocks.append(untimely)
            else:
                try:
                    return self._body(reply, request_id)
                except exception.DatabaseUnavailable:
                    if not self._elsewhere(end):
                        raise
                    attempts -= 1
        if len(wrong_clocks) == 2:
            raise self._wrong_clock(wrong_clocks[-1])
        self._lost()
        raise exception.OutcomeUnknown(peer=self._peer, reason="no answer")

    def call_server(
        self, server: str, verb: str, *, within: float | None = None, **arguments: Any
    ) -> Any:
        """Call one server, once; raise NoAnswer if it does not answer in time.

        ``within`` is a timeout in seconds; it has an effect if it is below the usual timeout.
        """
        patience = self._timeout if within is None else min(self._timeout, max(within, _SHORTEST))
        client = self._client.prepare(
            server=server, timeout=patience, call_monitor_timeout=_SILENCE
        )
        try:
            reply = self._call_once(client, verb, "", arguments)
        except oslo_messaging.MessagingTimeout:
            raise exception.NoAnswer(peer=f"{self._peer} on {server}") from None
        except signing.Untimely as untimely:
            raise self._wrong_clock(untimely) from None
        return unwrap(reply, f"{self._peer} on {server}", "")

    def cast_server(self, server: str, verb: str, **arguments: Any) -> None:
        """Send a message that may be lost; do not wait, and raise nothing."""
        version, sent = command.lowest(self._later, verb, arguments)
        cast = self._client.prepare(server=server, version=version).cast
        context = ids()

        def log_failure(future: Future[Any]) -> None:
            if (error := future.exception()) is not None:
                LOG.debug("Hint %s to the %s was not sent: %s", verb, self._peer, error)

        in_thread(lambda: cast(context, verb, **sent)).add_done_callback(log_failure)

    def close(self) -> None:
        """Abandon calls in progress: callers that wait for them get Unavailable at once."""
        if not self._closed.done():
            self._closed.set_result(None)

    def _call_once(
        self,
        client: Any,
        verb: str,
        request_id: str,
        arguments: dict[str, Any],
        *,
        patience: float | None = None,
    ) -> Any:
        """Send once and wait, for ``patience`` seconds if given; the usual limit is the timeout."""
        if self._closed.done():
            raise exception.Unavailable(peer=self._peer, reason="this process is ending")
        version, sent = command.lowest(self._later, verb, arguments)
        call = client.prepare(version=version).call
        with tracing.span(f"{self._peer} {verb}", SpanKind.CLIENT):
            context = {REQUEST_ID: "", **ids()}
            if request_id:
                context[REQUEST_ID] = request_id
            if self._sender:
                context[SENDER] = self._sender
            future = in_thread(lambda: call(context, verb, **sent))
            limit = self._timeout + _GRACE_SECONDS if patience is None else patience
            wait((future, self._closed), limit, FIRST_COMPLETED)
        if not future.done():
            self._lost()
            reason = "this process is ending" if self._closed.done() else "the bus is away"
            raise exception.OutcomeUnknown(peer=self._peer, reason=reason)
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, oslo_messaging.MessagingTimeout):
            raise error
        if isinstance(error, signing.Untimely):
            # Another server may have another clock, but a repetition must make a pause.
            wait((self._closed,), _SHORTEST)
            raise error
        if isinstance(error, oslo_messaging.MessageUndeliverable):
            self._lost()
            raise error
        if isinstance(error, signing.Refused):
            # Another process has answered in place of a server, so no server has: the call may be
            # repeated, but not without a pause.
            wait((self._closed,), _SHORTEST)
            raise oslo_messaging.MessagingTimeout(str(error))
        if isinstance(error, oslo_messaging.RPCVersionCapError):
            raise exception.PinnedVersion(
                peer=self._peer, verb=verb, needed=version, pin=error.version_cap
            )
        # Within one process the exception is the one that was raised.
        if getattr(error, "exc_type", type(error).__name__) in _UNKNOWN:
            raise exception.UnknownVerb(peer=self._peer, verb=verb) from None
        if isinstance(error, oslo_messaging.RemoteError):
            LOG.error("%s could not take %s: %s", self._peer, verb, error)
            raise exception.PeerFault(peer=self._peer, request_id=request_id) from None
        self._lost()
        reason, refused = rabbit.explain(error)
        if patience is not None and not refused and isinstance(error, rabbit.BrokerFailure):
            # The connection broke: the broker may have taken the message.
            wait((self._closed,), min(_FIRST_PAUSE, patience))
            raise exception.OutcomeUnknown(peer=self._peer, reason=reason) from error
        raise exception.Unavailable(peer=self._peer, reason=reason) from error

    def _body(self, reply: Any, request_id: str) -> Any:
        """Return the body of a reply, or raise its error; see ``unwrap``."""
        was_down, self._no_database = self._no_database, False
        try:
            return unwrap(reply, self._peer, request_id)
        except exception.DatabaseUnavailable:
            self._no_database = was_down
            raise

    def _elsewhere(self, end: float) -> bool:
        """Return, after a pause, whether to repeat a call whose server cannot use its database.

        Another server may reach another node of the database, so the call is repeated until
        ``end``. If that did not help, the database is down for all of them: later calls are not
        repeated until one of them succeeds.
        """
        if self._no_database or self._clock() >= end:
            self._no_database = True
            return False
        wait((self._closed,), _ELSEWHERE)
        return True

    def _wrong_clock(self, untimely: signing.Untimely) -> exception.Unavailable:
        """Return the error for requests that servers refuse because of the clock of this host."""
        reason = f"the clock of this host is {untimely.refusal.difference}"
        if untimely.refusal.retry_ms is not None:
            reason = f"{untimely.refusal.receiver} refuses the time of the request"
        return exception.Unavailable(peer=self._peer, reason=reason)

    def _connect(self) -> None:
        """Start to ping the peer in the background; return at once. Repeated calls are allowed."""
        with self._lock:
            if self._up.is_set() or (self._pinger is not None and self._pinger.is_alive()):
                return
            self._since = self._clock()
            self._pinger = threading.Thread(
                target=self._ping, name=f"ping-{self._peer}", daemon=True
            )
            self._pinger.start()

    def _ping(self) -> None:
        client = self._client.prepare(timeout=_PING_TIMEOUT, transport_options=_MANDATORY)
        pause = _FIRST_PAUSE
        while not self._up.is_set() and not self._closed.done():
            pong = in_thread(lambda: client.call({}, PING))
            wait((pong, self._closed), return_when=FIRST_COMPLETED)
            if not pong.done():  # this process is ending
                return
            error = pong.exception()
            if error is None:
                if self._trouble:
                    LOG.info("%s answers over the message bus", self._peer)
                self._trouble = ""
                self._up.set()
                return
            nobody = isinstance(error, oslo_messaging.MessageUndeliverable)
            reason = "no process listens on its queue" if nobody else rabbit.explain(error)[0]
            if reason != self._trouble:
                LOG.info("%s cannot be reached over the message bus: %s", self._peer, reason)
            self._trouble = reason
            wait((self._closed,), pause)
            # A peer that starts must be found soon; a broker that fails needs longer.
            pause = _FIRST_PAUSE if nobody else min(2 * pause, _LONGEST_PAUSE / 2)

    def _lost(self) -> None:
        self._up.clear()
        self._connect()


def warn_if_unsigned(conf: cfg.ConfigOpts) -> None:
    """Log a warning if this process accepts messages that nobody has signed; for its start."""
    mode = conf.message_signing
    if mode != signing.Mode.REQUIRED.value:
        LOG.warning(
            "[DEFAULT] message_signing is %s: this process accepts messages without a valid "
            "signature, so everyone with the transport_url of one host controls the service. "
            "Create keys with cyborg-signing-key, then set it to required in all processes.",
            mode,
        )


def _signer(conf: cfg.ConfigOpts, now: Callable[[], float]) -> signing.Signer:
    """Return the signer that the configuration describes; raises ConfigError."""
    mode, path = signing.Mode(conf.message_signing), conf.message_signing_key_file
    if not path:
        if mode is signing.Mode.REQUIRED:
            raise exception.ConfigError(
                reason="[DEFAULT] message_signing = required needs keys, and "
                "[DEFAULT] message_signing_key_file is not set. cyborg-signing-key creates keys."
            )
        return signing.Signer(mode, None, now=now)
    ring = KeyRing(Path(path), failed=_log_unusable_keys)
    if ring.keys.kind == HOST and ring.keys.owner != conf.host:
        raise exception.ConfigError(
            reason=f"The file of message signing keys {path} is for the host {ring.keys.owner}, "
            f"but [DEFAULT] host is {conf.host}."
        )
    return signing.Signer(mode, ring, now=now)


def _log_unusable_keys(error: exception.ConfigError, has_keys: bool) -> None:
    if has_keys:
        LOG.error("%s The keys that were read before stay in use for %d seconds.", error, GRACE)
    else:
        LOG.error("%s This process has no keys until the file can be used.", error)
