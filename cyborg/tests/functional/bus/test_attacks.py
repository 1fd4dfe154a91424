# SPDX-License-Identifier: Apache-2.0
"""Each attack of somebody who controls one compute host, and that it changes nothing.

The attacker has the transport_url and the file of keys of the host ``thief``.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import oslo_messaging
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import exception
from cyborg.cmd import signing_key
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Event, Host
from cyborg.model import wire
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.report import AgentHeartbeat, DriverReport, DriverState, Report
from cyborg.model.work import HandleTask, Outcome
from cyborg.rpc import keys
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.keys import Keys
from cyborg.rpc.signing import FIELD, UNTIMELY, WINDOW
from cyborg.rpc.transport import (
    AGENT_TOPIC,
    CONDUCTOR_AGENTS_TOPIC,
    CONDUCTOR_TOPIC,
    RPCClient,
)
from cyborg.rpc.verbs import AGENT, CreateDeviceProfile, Heartbeat, Release, SendReport
from cyborg.tests.fixtures.stack import Stack, fresh_exchange, reach
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.bus.conftest import REFUSALS, Attacker
from cyborg.tests.functional.life.steps import everything
from cyborg.tests.functional.life.test_discovery import card
from cyborg.tests.unit.rpc.endpoints import COMMANDS

Attackers = Callable[..., Attacker]
VICTIM, THIEF = "victim", "thief"
EVERYWHERE = Caller("p", "u", "req-attack", all_projects=True, service=True)
REPORT = Report((DriverReport("card_driver", DriverState.READY, (card(VICTIM),)),))
#: The attacks of the review: what a forged caller may do, with the arguments that were used.
FORGED: dict[str, dict[str, Any]] = {
    "create_device_profile": {"profile": wire.dump(DeviceProfile("", "forged", ({},)))},
    "delete_arqs": {"uuids": [str(uuid4())]},
    "install_driver": {
        "driver": "generic_driver",
        "hosts": None,
        "options": {"whitelist": '[{"address": "0000:00:1f.2", "force": true}]'},
        "wait": True,
    },
}


def heartbeat(host: str) -> AgentHeartbeat:
    return AgentHeartbeat(host, (host,), "1", f"{AGENT_TOPIC}@{host}", None)


def profile() -> CreateDeviceProfile:
    name = f"p-{uuid4()}"
    return CreateDeviceProfile(
        EVERYWHERE, str(uuid4()), DeviceProfile(str(uuid4()), name, ({"resources:FPGA": "1"},))
    )


def refused(send: Callable[[], Any]) -> bool:
    """Whether a request was refused because of its signature or time."""
    try:
        return UNTIMELY in send()
    except REFUSALS:
        return True


@pytest.fixture
def victim(secured: Stack) -> int:
    """A host with a card; the epoch of its agent."""
    return secured.report(VICTIM, REPORT)


@pytest.fixture
def thief(attacker: Attackers, of_host: Callable[[str], Path]) -> Attacker:
    return attacker(of_host(THIEF))


class Machine:
    """The verbs of an agent, which count what they would do to the hardware."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def endpoint(self) -> Endpoint:
        return Endpoint("agent", AGENT, Release.handled(self._release))

    def _release(self, command: Release) -> Outcome:
        self.released.append(command.task.request_key)
        return Outcome(command.task.request_key, done=True)


@pytest.mark.parametrize("has_key", [False, True], ids=["no key", "key of a host"])
@pytest.mark.parametrize("verb", FORGED)
def test_forged_caller_is_refused(
    secured: Stack,
    own_database: Database,
    attacker: Attackers,
    of_host: Callable[[str], Path],
    *,
    verb: str,
    has_key: bool,
) -> None:
    forger = attacker(of_host(THIEF) if has_key else None)
    arguments = {"caller": wire.dump(EVERYWHERE), "request_key": str(uuid4()), **FORGED[verb]}
    before = everything(own_database)
    for topic in (CONDUCTOR_TOPIC, CONDUCTOR_AGENTS_TOPIC):
        context = forger.signed(topic, verb, arguments, sender="cyborg-api@control", owner=THIEF)
        try:
            reply = forger.deliver(topic, verb, arguments, context)
        except REFUSALS:
            continue
        # The key is that of an agent, and the topic of agents does not have the verb.
        assert (topic, has_key) == (CONDUCTOR_AGENTS_TOPIC, True)
        assert reply["error"]["type"] == exception.UnknownVerb.kind
    assert everything(own_database) == before


def test_no_verb_of_the_api_is_on_the_topic_of_agents(thief: Attacker) -> None:
    """And the reverse: no verb of agents on the topic of the API."""
    answers = {}
    for verb in COMMANDS[CONDUCTOR_TOPIC]:
        context = thief.signed(CONDUCTOR_AGENTS_TOPIC, verb, {}, sender="x", owner=THIEF)
        reply = thief.deliver(CONDUCTOR_AGENTS_TOPIC, verb, {}, context)
        answers[verb] = reply["error"]["type"]
    offered = {verb for verb, kind in answers.items() if kind != exception.UnknownVerb.kind}
    assert offered == {
        "heartbeat",
        "report",
        "desired",
        "unit_uses",
        "published",
        "guests",
        "providers_removed",
        "readings",
    }


@pytest.mark.parametrize("claim", [THIEF, VICTIM])
def test_agent_speaks_of_its_own_host_only(
    victim: int, own_database: Database, thief: Attacker, claim: str
) -> None:
    before = everything(own_database)
    empty = wire.dump(Report((DriverReport("card_driver", DriverState.READY, ()),)))
    place = {"host": VICTIM, "epoch": victim}
    for verb, arguments in (
        ("report", {**place, "report": empty}),
        ("heartbeat", {"heartbeat": wire.dump(heartbeat(VICTIM))}),
        ("desired", place),
        ("unit_uses", place),
        ("published", {**place, "refused": {"x": "y"}, "published": {}}),
        ("providers_removed", {**place, "names": ["x"]}),
        ("readings", {**place, "readings": []}),
    ):
        sender = f"{AGENT_TOPIC}@{claim}"
        context = thief.signed(CONDUCTOR_AGENTS_TOPIC, verb, arguments, sender=sender, owner=THIEF)
        reply = thief.deliver(CONDUCTOR_AGENTS_TOPIC, verb, arguments, context)
        assert reply["error"]["type"] == exception.Forbidden.kind, verb
        assert f"cannot speak for host {VICTIM}" in str(reply["error"]["fields"])
        # The name of another owner in the signature does not help.
        context["signature"] = context["signature"].removesuffix(THIEF) + VICTIM
        assert refused(partial(thief.deliver, CONDUCTOR_AGENTS_TOPIC, verb, arguments, context))
    assert everything(own_database) == before


@pytest.mark.parametrize("owner", ["", THIEF], ids=["unsigned", "other host"])
def test_forged_release_reaches_no_hardware(
    secured: Stack, attacker: Attackers, of_host: Callable[[str], Path], owner: str
) -> None:
    machine = Machine()
    server = secured.bus().server(AGENT_TOPIC, VICTIM, machine.endpoint())
    server.start()
    task = HandleTask(str(uuid4()), "card_driver", "k", "h", "", "")
    arguments = {"task": wire.dump(task)}
    forger = attacker(of_host(owner) if owner else None)
    context = forger.signed(
        AGENT_TOPIC, "release", arguments, sender="", owner=owner, server=VICTIM
    )
    assert refused(
        lambda: forger.deliver(AGENT_TOPIC, "release", arguments, context, server=VICTIM)
    )
    assert machine.released == []
    client = AgentClient(secured.bus(), timeout=PATIENCE)
    assert client.request(VICTIM, Release(task)).done
    assert machine.released == [task.request_key]
    client.close()
    server.stop()
    server.wait()


class Impostor:
    """Answers in place of a conductor."""

    def __init__(self, secured: Stack) -> None:
        self.answered = 0
        self.target = None
        self._server = secured.bus().server(CONDUCTOR_TOPIC, "impostor", self)
        # It has no key, and wants none.
        gate: Any = type("Open", (), {"admit": staticmethod(lambda context, _: (context, None))})
        self._server._make.args[2]._gate = gate
        self._server.start()

    def create_device_profile(self, _context: Any, **_arguments: Any) -> Any:
        self.answered += 1
        return {"ok": None}

    def stop(self) -> None:
        self._server.stop()
        self._server.wait()


def beat(thief: Attacker, *names: str, host: str = THIEF) -> Any:
    """Send a heartbeat of the thief, signed with its own key, that names these providers."""
    place, sender = CONDUCTOR_AGENTS_TOPIC, f"{AGENT_TOPIC}@{host}"
    arguments = {"heartbeat": wire.dump(replace(heartbeat(host), provider_names=names))}
    context = thief.signed(place, "heartbeat", arguments, sender=sender, owner=host)
    return thief.deliver(place, "heartbeat", arguments, context)


def test_host_with_its_own_key_takes_no_name_of_another_host(
    victim: int, thief: Attacker, secured: Stack, own_database: Database
) -> None:
    with own_database.writer() as tx:
        # A host of the existing service that has no agent yet.
        old = {"name": "old", "generation": 0, "desired_generation": 1, "updated_ms": 0}
        tx.execute(sa.insert(Host).values(old))
    before = everything(own_database)
    for name in ("h3", "old", VICTIM):
        answer = beat(thief, name)
        assert answer["error"]["type"] == exception.Forbidden.kind
        assert f"provider_names = {THIEF}:{name}" in answer["error"]["fields"]["reason"]
    assert everything(own_database) == before
    # Names of others are ignored beside an own one.
    assert "ok" in beat(thief, "h3", "old", f"{THIEF}.example.org")
    with own_database.reader() as tx:
        owners = dict(tx.execute(sa.select(Host.name, Host.service_host)).all())
    assert owners == {VICTIM: VICTIM, "old": None, f"{THIEF}.example.org": THIEF}
    # Later heartbeats rename it to none of them.
    before = everything(own_database)
    for name in ("h3", "old", VICTIM):
        assert beat(thief, name)["error"]["type"] == exception.Forbidden.kind
    assert everything(own_database) == before
    for name in ("h3", "old", VICTIM):
        secured.report(name, Report(()))


def test_host_with_its_own_key_blocks_no_deployable_of_another_host(
    thief: Attacker, secured: Stack, own_database: Database
) -> None:
    epoch = beat(thief, THIEF)["ok"]["body"]["epoch"]
    cards = (card("h9_FakeDevice"), card(f"{THIEF}2_0000:5e:00.0", key="0000:5e:00.0"))
    own = card(f"{THIEF}_0000:5f:00.0", key="0000:5f:00.0")
    report = Report((DriverReport("card_driver", DriverState.READY, (*cards, own)),))
    arguments = {"host": THIEF, "epoch": epoch, "report": wire.dump(report)}
    sender = f"{AGENT_TOPIC}@{THIEF}"
    place = CONDUCTOR_AGENTS_TOPIC
    context = thief.signed(place, "report", arguments, sender=sender, owner=THIEF)
    refusals = thief.deliver(place, "report", arguments, context)["ok"]["body"]["refused"]
    assert refusals.keys() == {"h9_FakeDevice", f"{THIEF}2_0000:5e:00.0"}
    assert f"does not begin with {THIEF}_" in refusals["h9_FakeDevice"]
    names = Report((DriverReport("fake_driver", DriverState.READY, (card("h9_FakeDevice"),)),))
    secured.report("h9", names)
    with own_database.reader() as tx:
        stored = set(tx.execute(sa.select(Deployable.name)).scalars())
    assert stored == {"h9_FakeDevice", f"{THIEF}_0000:5f:00.0"}


def test_operator_allows_a_host_another_name(
    signing: None,
    conf: cfg.ConfigOpts,
    own_database: Database,
    beside: Callable[..., Stack],
    of_host: Callable[[str], Path],
) -> None:
    """The rename is in the history."""
    conf.set_override("provider_names", {THIEF: "node-7"}, group="conductor")
    own = beside(own_database, exchange=fresh_exchange())
    own.start_conductor()
    own.conductor_client()
    agent = Attacker(own.bus(), own.exchange, of_host(THIEF))
    assert "ok" in beat(agent, THIEF)
    assert "ok" in beat(agent, "node-7")
    assert beat(agent, "node-8")["error"]["type"] == exception.Forbidden.kind
    with own_database.reader() as tx:
        assert list(tx.execute(sa.select(Host.name)).scalars()) == ["node-7"]
        rows = tx.execute(sa.select(Event.action, Event.reason)).all()
    assert ("host renamed", f"from {THIEF} to node-7") in [tuple(row) for row in rows]
    conf.clear_override("provider_names", group="conductor")


def test_listener_on_the_topic_of_conductors_answers_nobody(
    secured: Stack, own_database: Database
) -> None:
    impostor = Impostor(secured)
    client = reach(ConductorClient(secured.bus(), timeout=PATIENCE))
    requests: list[CreateDeviceProfile] = []
    stored = []
    # The bus decides who of the two receives a request.
    while len(requests) < 6 or (not impostor.answered and len(requests) < 100):
        requests.append(profile())
        request = requests[-1]
        stored.append(client.call_until(request.verb, within=PATIENCE, **request.dump()))
    assert impostor.answered > 0
    rows = str(everything(own_database))
    assert all(request.profile.name in rows for request in requests)
    assert all(stored)
    client.close()
    impostor.stop()


def test_replayed_request_is_refused(victim: int, thief: Attacker, secured: Stack) -> None:
    arguments = {"heartbeat": wire.dump(heartbeat(THIEF))}
    sender = f"{AGENT_TOPIC}@{THIEF}"
    place = CONDUCTOR_AGENTS_TOPIC
    context = thief.signed(place, "heartbeat", arguments, sender=sender, owner=THIEF)
    assert "ok" in thief.deliver(place, "heartbeat", arguments, dict(context))
    assert refused(lambda: thief.deliver(place, "heartbeat", arguments, dict(context)))


def test_write_that_is_replayed_to_another_conductor_changes_nothing(
    secured: Stack, own_database: Database, attacker: Attackers, master_file: Path
) -> None:
    """Each conductor remembers its own nonces, and refuses what is older than itself."""
    recorder = attacker(master_file)
    request = profile()
    arguments = request.dump()
    place, verb = CONDUCTOR_TOPIC, request.verb
    context = recorder.signed(place, verb, arguments, sender="cyborg-api@control")
    first = recorder.deliver(place, verb, arguments, dict(context))
    rows = everything(own_database)
    secured.start_conductor("control-2")
    answers = []

    def is_answered() -> bool:
        """Whether the conductor that has not seen the request has got it, which is chance."""
        try:
            answers.append(recorder.deliver(place, verb, arguments, dict(context)))
        except REFUSALS:
            return False
        return True

    eventually(is_answered)
    assert "ok" in first
    # It started after the request was sent.
    assert answers[0].keys() == {UNTIMELY, FIELD}
    assert everything(own_database) == rows


def test_request_from_before_the_start_of_an_agent_is_refused(
    secured: Stack, attacker: Attackers, master_file: Path
) -> None:
    recorder, machine = attacker(master_file), Machine()
    arguments = {"task": wire.dump(HandleTask(str(uuid4()), "card_driver", "k", "h", "", ""))}
    context = recorder.signed(
        AGENT_TOPIC, "release", arguments, sender="", owner=VICTIM, server=VICTIM
    )
    server = secured.bus().server(AGENT_TOPIC, VICTIM, machine.endpoint())
    server.start()
    assert refused(
        lambda: recorder.deliver(AGENT_TOPIC, "release", arguments, context, server=VICTIM)
    )
    assert machine.released == []
    server.stop()
    server.wait()


def test_tampered_request_is_refused(
    victim: int, own_database: Database, attacker: Attackers, master_file: Path
) -> None:
    middle = attacker(master_file)
    place = CONDUCTOR_AGENTS_TOPIC
    arguments = {"host": VICTIM, "epoch": victim, "refused": {}, "published": {}}
    before = everything(own_database)

    def context(verb: str = "published") -> dict[str, Any]:
        sender = f"{AGENT_TOPIC}@{VICTIM}"
        return middle.signed(place, verb, arguments, sender=sender, owner=VICTIM)

    tampered = {**arguments, "refused": {"provider": "gone"}}
    assert refused(lambda: middle.deliver(place, "published", tampered, context()))
    assert refused(lambda: middle.deliver(place, "published", arguments, context("desired")))
    changed = {**context(), "request_id": "req-other"}
    assert refused(lambda: middle.deliver(place, "published", arguments, changed))
    # HMAC, time, nonce, ID of the key and owner.
    for number, value in ((0, "é"), (0, "7"), (1, "0"), (2, "0" * 32), (3, "k"), (4, THIEF)):
        other = context()
        fields = other["signature"].split(" ")
        other["signature"] = " ".join((*fields[:number], value, *fields[number + 1 :]))
        assert refused(partial(middle.deliver, place, "published", arguments, other)), value
    for signature in ([1], 7, "", "a b c"):
        other = {**context(), "signature": signature}
        assert refused(partial(middle.deliver, place, "published", arguments, other)), signature
    assert everything(own_database) == before
    assert middle.deliver(place, "published", arguments, context()).keys() >= {"ok", "signature"}


@pytest.mark.parametrize("seconds", [-WINDOW - 5, WINDOW + 5])
def test_expired_request_is_refused(
    victim: int, attacker: Attackers, master_file: Path, seconds: float
) -> None:
    late = attacker(master_file)
    arguments = {"host": VICTIM, "epoch": victim}
    context = late.signed(
        CONDUCTOR_AGENTS_TOPIC,
        "desired",
        arguments,
        sender=f"{AGENT_TOPIC}@{VICTIM}",
        owner=VICTIM,
        now=lambda: time.time() + seconds,
    )
    assert refused(lambda: late.deliver(CONDUCTOR_AGENTS_TOPIC, "desired", arguments, context))


def test_keys_are_replaced_without_a_stop(
    secured: Stack, master: Keys, master_file: Path, tmp_path: Path, attacker: Attackers
) -> None:
    """The new key verifies, then signs, and then the old one is removed and refused.

    A process notices a change of the file after a second, so each step waits for the one before.
    """
    old, new = master.keys[0], keys.generate([key.id for key in master.keys])
    holders = []
    for name, key in (("old", old), ("new", new)):
        keys.write(tmp_path / name, Keys(master.kind, master.owner, (key,)))
        holders.append(attacker(tmp_path / name))

    def is_refused(holder: Attacker) -> bool:
        arguments, place = profile().dump(), CONDUCTOR_TOPIC
        context = holder.signed(place, profile().verb, arguments, sender="cyborg-api@c")
        return refused(lambda: holder.deliver(place, profile().verb, arguments, context))

    def writes() -> bool:
        """Whether the client signs with a key that is valid."""
        with contextlib.suppress(exception.OutcomeUnknown):
            return client.write(profile()).name.startswith("p-")
        return False

    client = reach(ConductorClient(secured.bus(), timeout=PATIENCE))
    assert not is_refused(holders[0])
    assert is_refused(holders[1])
    keys.write(master_file, Keys(master.kind, master.owner, (old, new)))
    assert writes()
    eventually(lambda: not is_refused(holders[1]))
    keys.write(master_file, Keys(master.kind, master.owner, (new, old)))
    assert writes()
    keys.write(master_file, Keys(master.kind, master.owner, (new,)))
    eventually(lambda: is_refused(holders[0]))
    eventually(writes)
    client.close()


def test_key_of_a_stolen_host_is_revoked_without_a_stop(
    victim: int, thief: Attacker, secured: Stack, master_file: Path
) -> None:
    """The other hosts keep their keys."""
    place, arguments = CONDUCTOR_AGENTS_TOPIC, {"heartbeat": wire.dump(heartbeat(THIEF))}

    def is_refused() -> bool:
        sender = f"{AGENT_TOPIC}@{THIEF}"
        context = thief.signed(place, "heartbeat", arguments, sender=sender, owner=THIEF)
        return refused(lambda: thief.deliver(place, "heartbeat", arguments, context))

    assert not is_refused()
    assert signing_key.main(["revoke", str(master_file), "--host", THIEF]) == 0
    eventually(is_refused)
    assert secured.report(VICTIM, REPORT) > victim


def test_process_without_keys_gets_no_answer(secured: Stack, conf: cfg.ConfigOpts) -> None:
    conf.set_override("message_signing", "off")
    conf.set_override("message_signing_key_file", None)
    line = reach(RPCClient(secured.bus(), CONDUCTOR_TOPIC, peer="conductor", timeout=5, sender="x"))
    with pytest.raises(exception.CyborgError):
        line.call("create_device_profile", **profile().dump())
    line.close()


def test_real_agent_works_with_the_keys_of_its_host_only(
    secured: Stack,
    conf: cfg.ConfigOpts,
    own_database: Database,
    of_host: Callable[[str], Path],
) -> None:
    conf.set_override("message_signing_key_file", str(of_host("own")))
    conf.set_override("host", "own")
    agent = reach(ConductorClient(secured.bus(), timeout=PATIENCE, sender=f"{AGENT_TOPIC}@own"))
    epoch = agent.request(Heartbeat(heartbeat("own"))).epoch
    agent.request(SendReport("own", epoch, Report(())))
    conf.clear_override("host")
    with pytest.raises(exception.ConfigError, match="is for the host own"):
        secured.bus()
    agent.close()


@pytest.mark.parametrize("mode", ["off", "warn", "required"])
def test_agent_has_no_verb_on_the_topic_of_the_api_even_without_signatures(
    signing: None,
    conf: cfg.ConfigOpts,
    own_database: Database,
    beside: Callable[..., Stack],
    caplog: pytest.LogCaptureFixture,
    *,
    mode: str,
) -> None:
    conf.set_override("message_signing", mode)
    own = beside(own_database, exchange=fresh_exchange())
    own.start_conductor()
    own.conductor_client()
    unsigned = Attacker(own.bus(), own.exchange)
    arguments = {"heartbeat": wire.dump(heartbeat("compute"))}
    sender = f"{AGENT_TOPIC}@compute"
    context = unsigned.signed(CONDUCTOR_TOPIC, "heartbeat", arguments, sender=sender)
    send = partial(unsigned.deliver, CONDUCTOR_TOPIC, "heartbeat", arguments, context)
    with pytest.raises((oslo_messaging.NoSuchMethod, *REFUSALS)):
        send()
    warnings = [one for one in caplog.records if one.name == "cyborg.rpc.signing"]
    assert len(warnings) == (mode != "off")
