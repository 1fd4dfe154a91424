# SPDX-License-Identifier: Apache-2.0
"""One process's connection to the bus, and bounded calls over it.

oslo.messaging blocks far beyond a call's timeout while the broker is away. An ``RPCClient``
therefore makes each call in a thread of its own and waits only for the timeout. After a call that
reached no server, it raises Unavailable at once until a ping in the background gets an answer.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import MappingProxyType
from typing import Any, Final

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts
from oslo_messaging.rpc.server import RPCServer

from cyborg import exception, tracing
from cyborg.context import REQUEST_ID, carried, ids, working_for
from cyborg.model.trouble import Trouble
from cyborg.rpc import faults, rabbit, versions

LOG = logging.getLogger(__name__)

EXCHANGE = "cyborg"
CONDUCTOR_TOPIC = "cyborg-conductor"
AGENT_TOPIC = "cyborg-agent"

#: How long the first request of a process may wait for the first connection, in seconds.
_FIRST_CONNECTION = 3.0
#: How much longer than its time-out a call is waited for, in seconds.
_GRACE_SECONDS = 1.0
#: Pauses between attempts to use a broker that does not let us, in seconds: the first, the longest.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0
#: How long the end of a process may wait for its connections to be closed, in seconds.
_CLOSING = 5.0
_PING_TIMEOUT = 5.0
#: A broker is to say so when a ping finds no queue. Otherwise the first conductor of a new broker
#: would be found only when the ping before it has timed out. (The broker's Ack follows; it does not
#: confuse the next message of that channel, for py-amqp reads what there is before it publishes.)
_MANDATORY: Final = oslo_messaging.TransportOptions(at_least_once=True)
#: The shortest time-out of a call, in seconds.
_SHORTEST = 0.1
#: How long a server with a call may be silent, in seconds; a working server sends heartbeats.
#: A stopped server of oslo.messaging loses the calls that arrive while its last calls end (its
#: consumer still takes them from RabbitMQ, but does not process them). They are repeated then.
_SILENCE = 5.0


#: What servers of another release raise at a verb, or a version of it, that they do not have.
_UNKNOWN = frozenset({"NoSuchMethod", "UnsupportedVersion"})


class _Dispatcher(oslo_messaging.RPCDispatcher):
    """Dispatch calls with the request id of the caller, so that log lines name it.

    Unknown verbs are refused with one log line; oslo.messaging would log a traceback.
    """

    def dispatch(self, incoming: Any) -> Any:
        """Dispatch a call in the context of its caller; see the parent."""
        context, verb = incoming.ctxt, incoming.message.get("method")
        server = tracing.Kind.SERVER
        with working_for(context), tracing.span(f"handle {verb}", server, origin=context):
            return self._dispatch(incoming)

    def _dispatch(self, incoming: Any) -> Any:
        try:
            return super().dispatch(incoming)
        except (oslo_messaging.NoSuchMethod, oslo_messaging.UnsupportedVersion) as refusal:
            LOG.warning("Call of a peer of another release refused: %s", refusal)
            raise oslo_messaging.ExpectedException from None


class _Server(RPCServer):
    """An RPC server whose calls run in threads of the standard library.

    The default threads, futurist's, check once a second whether to end. Until they end, the server
    takes calls from the broker that it does not answer.
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._executor_cls = ThreadPoolExecutor


class Receiver:
    """An RPC server that starts once the broker accepts it; ``make`` builds one per attempt."""

    def __init__(self, make: Callable[[], _Server], troubles: rabbit.Troubles) -> None:
        self._make = make
        self._troubles = troubles
        self._server: _Server | None = None
        self._began: float | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Try until the server listens, or is told to stop; pauses grow from 1 to 10 seconds."""
        self._began = time.monotonic()
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            server = self._make()
            try:
                server.start()
            except Exception as error:  # noqa: BLE001
                # Nothing but the messaging libraries runs in there; errors of the broker's driver
                # pass unchanged.
                self._troubles.failed(rabbit.SERVER, error)
            else:
                self._server = server
                self._troubles.works(rabbit.SERVER)
                return
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def stop(self) -> None:
        """Take no more requests."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()

    def wait(self) -> None:
        """Return when the requests in hand are answered."""
        if self._server is not None:
            self._server.wait()

    @property
    def trouble(self) -> Trouble | None:
        """Why no request is answered; None while the server listens, and before it is started."""
        trouble = self._troubles.of(rabbit.SERVER)
        if trouble is None and self._server is not None:
            # A process that may not send cannot answer what it receives.
            sender = self._troubles.of(rabbit.SENDER)
            return sender if sender is not None and sender.refused else None
        if trouble is not None or self._began is None:
            return trouble
        # No attempt has ended yet.
        if time.monotonic() - self._began < _FIRST_CONNECTION:
            return None
        return Trouble("no connection to the message bus yet", self._began)


class Bus:
    """The transport of one process; connects when first used.

    ``conf`` must be the global ``cfg.CONF`` (oslo.messaging registers its options there); ``url``
    overrides ``[DEFAULT] transport_url``, ``exchange`` overrides ``[DEFAULT] control_exchange``.
    Services with different exchanges keep apart on one virtual host. ``[upgrade_levels]`` limits
    what is sent. Raises ConfigError for a URL that is not set, and for a URL or a limit that cannot
    be used.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, *, url: str | None = None, exchange: str | None = None
    ) -> None:
        oslo_messaging.set_transport_defaults(EXCHANGE)
        # By itself it registers most of its options at first use, too late to check them.
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
        rabbit.watch(self._transport, self.troubles)
        self._exchange = exchange or conf.control_exchange
        levels = conf.upgrade_levels
        self._pins = {
            CONDUCTOR_TOPIC: versions.pinned("conductor", levels.conductor, versions.CONDUCTOR),
            AGENT_TOPIC: versions.pinned("agent", levels.agent, versions.AGENT),
        }

    def server(self, topic: str, server: str, endpoint: object) -> Any:
        """An RPC server for ``topic.server``; the caller starts and stops it."""
        target = oslo_messaging.Target(
            exchange=self._exchange, topic=self._queue(topic), server=server
        )
        dispatcher = _Dispatcher([endpoint], None, oslo_messaging.DefaultRPCAccessPolicy)

        def make() -> _Server:
            return _Server(self._transport, target, dispatcher, executor="threading")

        return Receiver(make, self.troubles)

    def client(self, topic: str) -> Any:
        """An oslo.messaging RPC client that tries a send once, of nothing above the pin."""
        return oslo_messaging.get_rpc_client(
            self._transport,
            oslo_messaging.Target(
                exchange=self._exchange, topic=self._queue(topic), version=versions.FIRST
            ),
            version_cap=self._pins.get(topic),
            retry=1,
        )

    def close(self) -> None:
        """Drop the connections; calls in flight end as unavailable."""
        # A thread that connects holds a lock that this needs, while the broker does not answer.
        wait((in_thread(self._transport.cleanup, name="bus-close"),), _CLOSING)

    def _queue(self, topic: str) -> str:
        """RabbitMQ calls a queue by its topic alone, whatever the exchange: it must be in it."""
        return topic if self._exchange == EXCHANGE else f"{self._exchange}.{topic}"


class RPCClient:
    """Bounded calls to the servers of one topic.

    ``timeout`` is in seconds and holds for each try of ``call``; ``sender`` is the endpoint or the
    name of the caller, without which conductors refuse a call; ``later`` is the history of the
    servers' verbs, by which each message is of the lowest version that will do. Every method raises
    Unavailable when nobody can be reached, PinnedVersion for what may not be sent, and
    OutcomeUnknown when the second try, with the same arguments and so the same request key, went
    unanswered too.
    """

    def __init__(
        self,
        bus: Bus,
        topic: str,
        *,
        peer: str,
        timeout: float,
        sender: str = "",
        later: versions.Later = MappingProxyType({}),
    ) -> None:
        self._sender = sender
        self._later = later
        self._client = bus.client(topic)
        self._asking = self._client.prepare(timeout=timeout, call_monitor_timeout=_SILENCE)
        self._peer = peer
        self._timeout = timeout
        self._up = threading.Event()
        self._lock = threading.Lock()
        self._pinger: threading.Thread | None = None
        self._since = 0.0
        self._trouble = ""
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
        patience = self._since + _FIRST_CONNECTION - time.monotonic()
        return self._up.wait(max(0.0, patience))

    def insist(self) -> None:
        """Raise Unavailable if the peer is not reached; see ``reached``."""
        if not self.reached():
            reason = self._trouble or "no connection over the message bus yet"
            raise exception.Unavailable(peer=self._peer, reason=reason)

    def call_until(
        self, verb: str, *, within: float, request_id: str = "", **arguments: Any
    ) -> Any:
        """Ask any server of the topic, again whenever it is silent, for ``within`` seconds.

        The repeats have the same arguments, and so the same request key. Raises Unavailable when
        the broker has refused the message, and OutcomeUnknown not before the time is over.
        """
        self.insist()
        end = time.monotonic() + within
        while True:
            left = max(end - time.monotonic(), _SHORTEST)
            client = self._client.prepare(timeout=left, call_monitor_timeout=_SILENCE)
            try:
                reply = self._once(client, verb, request_id, arguments, patience=left)
            except oslo_messaging.MessagingTimeout:
                pass
            except exception.OutcomeUnknown:
                if self._closed.done():
                    raise
            else:
                return faults.unwrap(reply, self._peer, request_id)
            if time.monotonic() >= end:
                self._lost()
                raise exception.OutcomeUnknown(peer=self._peer, reason="no answer")

    def call(self, verb: str, *, request_id: str = "", **arguments: Any) -> Any:
        """Ask any server of the topic; a try that times out is repeated once, as it is."""
        self.insist()
        for last in (False, True):
            try:
                reply = self._once(self._asking, verb, request_id, arguments)
            except oslo_messaging.MessagingTimeout:
                if last:
                    self._lost()
                    raise exception.OutcomeUnknown(peer=self._peer, reason="no answer") from None
                continue
            return faults.unwrap(reply, self._peer, request_id)
        raise AssertionError("unreachable")

    def call_server(
        self, server: str, verb: str, *, within: float | None = None, **arguments: Any
    ) -> Any:
        """Ask one named server, once; raises NoAnswer when it does not answer in time.

        ``within`` is a time in seconds that may be shorter than the usual one.
        """
        patience = self._timeout if within is None else min(self._timeout, max(within, 0.1))
        client = self._client.prepare(
            server=server, timeout=patience, call_monitor_timeout=_SILENCE
        )
        try:
            reply = self._once(client, verb, "", arguments)
        except oslo_messaging.MessagingTimeout:
            raise exception.NoAnswer(peer=f"{self._peer} on {server}") from None
        return faults.unwrap(reply, f"{self._peer} on {server}", "")

    def tell_server(self, server: str, verb: str, **arguments: Any) -> None:
        """Send a hint that may be lost; never raises, never waits."""
        spoken = versions.said(self._later, verb, arguments)
        version = versions.needed(self._later, verb, spoken)
        cast = self._client.prepare(server=server, version=version).cast
        context = ids()
        sending = in_thread(lambda: cast(context, verb, **spoken))
        sending.add_done_callback(lambda future: self._note(verb, future.exception()))

    def close(self) -> None:
        """Abandon calls in progress: callers that wait for them get Unavailable at once."""
        if not self._closed.done():
            self._closed.set_result(None)

    def _once(
        self,
        client: Any,
        verb: str,
        request_id: str,
        arguments: dict[str, Any],
        *,
        patience: float | None = None,
    ) -> Any:
        """Send once and wait; ``patience`` in seconds ends a call that the bus holds up."""
        if self._closed.done():
            raise exception.Unavailable(peer=self._peer, reason="this process is ending")
        spoken = versions.said(self._later, verb, arguments)
        version = versions.needed(self._later, verb, spoken)
        call = client.prepare(version=version).call
        with tracing.span(f"{self._peer} {verb}", tracing.Kind.CLIENT):
            context = {REQUEST_ID: request_id, **ids()}
            if request_id:
                context[REQUEST_ID] = request_id
            if self._sender:
                context["sender"] = self._sender
            future = in_thread(lambda: call(context, verb, **spoken))
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
        if isinstance(error, oslo_messaging.RPCVersionCapError):
            raise exception.PinnedVersion(
                peer=self._peer, verb=verb, needed=version, pin=error.version_cap
            )
        # Within one process it comes as it was raised.
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

    def _connect(self) -> None:
        """Start to ping the peer in the background; return at once. Repeated calls are allowed."""
        with self._lock:
            if self._up.is_set() or (self._pinger is not None and self._pinger.is_alive()):
                return
            self._since = time.monotonic()
            self._pinger = threading.Thread(
                target=self._ping, name=f"ping-{self._peer}", daemon=True
            )
            self._pinger.start()

    def _ping(self) -> None:
        client = self._client.prepare(timeout=_PING_TIMEOUT, transport_options=_MANDATORY)
        pause = _FIRST_PAUSE
        while not self._up.is_set() and not self._closed.done():
            pong = in_thread(lambda: client.call({}, "ping"))
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
            # A peer that starts must be found soon; a broker that fails may take its time.
            pause = _FIRST_PAUSE if nobody else min(2 * pause, _LONGEST_PAUSE / 2)

    def _lost(self) -> None:
        self._up.clear()
        self._connect()

    def _note(self, verb: str, error: BaseException | None) -> None:
        if error is not None:
            LOG.debug("Hint %s to the %s was not sent: %s", verb, self._peer, error)


def in_thread(call: Callable[[], Any], *, name: str = "rpc-call") -> Future[Any]:
    """Call in a thread that the process does not wait for at its end, unlike an executor's."""
    future: Future[Any] = Future()
    call = carried(call)

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001
            # Nothing but the messaging libraries runs in there; those of the broker's driver let
            # errors of their own pass while they make a connection. Each belongs to who asked.
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
