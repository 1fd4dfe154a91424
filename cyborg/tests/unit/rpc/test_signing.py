# SPDX-License-Identifier: Apache-2.0
"""Signatures: what they cover, which are refused, and the memory of replays."""

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import exception
from cyborg.rpc import keys
from cyborg.rpc.endpoint import unwrap
from cyborg.rpc.keys import CONTROLLER, MASTER, Key, KeyRing, Keys
from cyborg.rpc.signing import (
    FIELD,
    WINDOW,
    Mode,
    Receiver,
    Refused,
    Replays,
    Request,
    Signer,
    TimeRefusal,
    Untimely,
)
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed
from cyborg.tests.unit.rpc.endpoints import COMMANDS, endpoint

REQUEST = Request("cyborg-conductor", "bind", "1.0", {"a": [1, "é"]}, {"sender": "cyborg-api@c"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Clock:
    """The times of a process, which a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    path = tmp_path / "keys.json"
    keys.write(path, Keys(MASTER, CONTROLLER, (Key("k", bytes(32)),)))
    return KeyRing(path, failed=print)


@pytest.fixture
def signer(ring: KeyRing, clock: Clock) -> Callable[[Mode], Signer]:
    return lambda mode: Signer(mode, ring, now=clock, clock=clock)


def _file(factory: pytest.TempPathFactory) -> Path:
    path = factory.getbasetemp() / "any.json"
    if not path.exists():
        keys.write(path, Keys(MASTER, CONTROLLER, (Key("k", bytes(32)),)))
    return path


#: A server that receives from every owner since its host started.
ANYBODY = Receiver("control-1", 0.0, lambda _owner: True)


def sent(signer: Signer, owner: str = CONTROLLER) -> tuple[Request, Any]:
    """A request as it arrives, and the proof of its sender."""
    context, proof = signer.sign(owner, REQUEST)
    return replace(REQUEST, context=json.loads(json.dumps(context))), proof


def test_signed_request_and_reply_are_verified(signer: Callable[[Mode], Signer]) -> None:
    client, server = signer(Mode.REQUIRED), signer(Mode.REQUIRED)
    request, proof = sent(client)
    admitted = server.admit(request, ANYBODY)
    assert admitted is not None
    reply = admitted.sign({"ok": {"b": 1}})
    assert reply["ok"] == {"b": 1}
    client.check_reply("conductor", proof, json.loads(json.dumps(reply)))
    other = sent(client)[1]
    wrong: Any
    for wrong in (
        {**reply, "ok": 7},
        {"error": reply["ok"], FIELD: reply[FIELD]},
        {"ok": {"b": 1}},
        {**reply, FIELD: 7},
        {**reply, FIELD: "é"},
        None,
        [],
    ):
        with pytest.raises(Refused):
            client.check_reply("conductor", proof, wrong)
    with pytest.raises(Refused):
        client.check_reply("conductor", other, reply)
    with pytest.raises(Refused):
        client.check_reply("conductor", None, reply)


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "cyborg-conductor-agents"},
        {"verb": "unbind"},
        {"version": "1.1"},
        {"arguments": {"a": [1, "e"]}},
        {"arguments": {"a": [1, "é"], "b": None}},
        {"arguments": {"a": float("nan")}},
    ],
)
def test_signature_covers_every_part_of_a_request(
    signer: Callable[[Mode], Signer], changes: dict[str, Any]
) -> None:
    server = signer(Mode.REQUIRED)
    request, _ = sent(server)
    with pytest.raises(Refused, match="its signature is wrong"):
        server.admit(replace(request, **changes), ANYBODY)
    assert server.admit(request, ANYBODY) is not None


def test_entry_that_the_driver_of_rabbitmq_adds_is_not_signed(
    signer: Callable[[Mode], Signer],
) -> None:
    server = signer(Mode.REQUIRED)
    request, _ = sent(server)
    received = replace(request, context={**request.context, "client_timeout": 5.0})
    assert server.admit(received, ANYBODY) is not None


def test_signature_covers_the_context(signer: Callable[[Mode], Signer]) -> None:
    server = signer(Mode.REQUIRED)
    request, _ = sent(server)
    for context in ({**request.context, "sender": "x"}, {**request.context, "more": 1}):
        with pytest.raises(Refused, match="its signature is wrong"):
            server.admit(replace(request, context=context), ANYBODY)


@given(arguments=st.dictionaries(st.text(), JSON | st.just("\ud800") | st.just(2**70)))
def test_any_arguments_are_verified_after_json(
    tmp_path_factory: pytest.TempPathFactory, arguments: dict[str, Any]
) -> None:
    """The order of keys is that of the message, and numbers have any size."""
    signer = Signer(Mode.REQUIRED, KeyRing(_file(tmp_path_factory), failed=print))
    request = replace(REQUEST, arguments=arguments)
    context, _ = signer.sign(CONTROLLER, request)
    received = json.loads(json.dumps([arguments, context]))
    assert signer.admit(replace(request, arguments=received[0], context=received[1]), ANYBODY)


def test_large_number_is_not_equal_to_its_text(signer: Callable[[Mode], Signer]) -> None:
    subject = signer(Mode.REQUIRED)
    request = replace(REQUEST, arguments={"a": 2**70})
    context, _ = subject.sign(CONTROLLER, request)
    with pytest.raises(Refused):
        subject.admit(replace(request, arguments={"a": str(2**70)}, context=context), ANYBODY)


@given(signature=JSON | st.from_regex(r"[0-9a-f]* [0-9]+ [^ ]* [^ ]* .*"))
def test_any_signature_is_refused_without_a_fault(signature: Any) -> None:
    server = Signer(Mode.REQUIRED, None)
    context = {FIELD: signature}
    with pytest.raises(Refused):
        server.admit(replace(REQUEST, context=context), ANYBODY)


@given(field=st.sampled_from(range(5)), value=st.text() | st.from_regex(r"[0-9]{1,20}"))
def test_any_changed_field_is_refused(
    tmp_path_factory: pytest.TempPathFactory, field: int, value: str
) -> None:
    """The fields are HMAC, time, nonce, ID of the key and owner."""
    server = Signer(Mode.REQUIRED, KeyRing(_file(tmp_path_factory), failed=print))
    request, _ = sent(server)
    fields = request.context[FIELD].split(" ")
    if fields[field] == value:
        return
    fields[field] = value
    context = {**request.context, FIELD: " ".join(fields)}
    with pytest.raises(Refused):
        server.admit(replace(request, context=context), ANYBODY)


def test_deeply_nested_arguments_are_refused(signer: Callable[[Mode], Signer]) -> None:
    server = signer(Mode.REQUIRED)
    request, _ = sent(server)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Refused, match="its signature is wrong"):
        server.admit(replace(request, arguments={"a": deep}), ANYBODY)
    # What was packed of it is not part of the next message.
    assert server.admit(request, ANYBODY) is not None


def test_threads_that_sign_at_once_do_not_disturb_each_other(
    signer: Callable[[Mode], Signer],
) -> None:
    """Large numbers make the packer call back into Python, where another thread may run."""
    client, server = signer(Mode.REQUIRED), signer(Mode.REQUIRED)

    def sign(thread: int) -> list[Request]:
        requests = []
        for number in range(50):
            request = replace(REQUEST, arguments={"a": [2**70 + number] * 50, "b": thread})
            context, _ = client.sign(CONTROLLER, request)
            requests.append(replace(request, context=context))
        return requests

    with ThreadPoolExecutor(4) as pool:
        requests = [request for signed in pool.map(sign, range(4)) for request in signed]
        proofs = list(pool.map(lambda request: server.admit(request, ANYBODY), requests))
    assert None not in proofs


def test_key_of_another_owner_is_refused(signer: Callable[[Mode], Signer]) -> None:
    server = signer(Mode.REQUIRED)
    request, _ = sent(server, "compute-1")
    with pytest.raises(Refused, match="must not be used for this topic"):
        server.admit(request, replace(ANYBODY, accepts=lambda owner: owner == CONTROLLER))
    claimed = request.context[FIELD].removesuffix("compute-1") + CONTROLLER
    with pytest.raises(Refused, match="its signature is wrong"):
        server.admit(replace(request, context={**request.context, FIELD: claimed}), ANYBODY)
    assert server.admit(request, ANYBODY) is not None


def test_time_window_and_replays(signer: Callable[[Mode], Signer], clock: Clock) -> None:
    server = signer(Mode.REQUIRED)
    request, _ = sent(server)
    assert server.admit(request, ANYBODY) is not None
    with pytest.raises(Refused, match="received before"):
        server.admit(request, ANYBODY)
    for error, difference in (
        (WINDOW + 1, "121 s behind control-1"),
        (-WINDOW - 1, "121 s ahead of control-1"),
    ):
        other, proof = sent(server)
        clock.now += error
        with pytest.raises(Untimely, match=difference) as refused:
            server.admit(other, ANYBODY)
        clock.now -= error
        with pytest.raises(Untimely, match=difference) as told:
            server.check_reply("conductor", proof, refused.value.reply)
        assert told.value.refusal == refused.value.refusal
        forged = TimeRefusal("control-1", 600_000).reply()
        with pytest.raises(Refused, match="no signature"):
            server.check_reply("conductor", proof, forged)


def test_request_from_before_the_start_is_accepted_with_the_time_of_the_receiver(
    ring: KeyRing,
) -> None:
    """Whatever clocks do meanwhile: the start has an age, and no time."""
    wall, steady = Clock(), Clock()
    server = Signer(Mode.REQUIRED, ring, now=wall, clock=steady)
    receiver = replace(ANYBODY, began=steady.now)
    wall.now -= 3600
    accepted, _ = sent(server)
    assert server.admit(accepted, receiver) is not None
    steady.now += 5
    context, _ = server.sign(CONTROLLER, REQUEST, time_ms=int((wall.now - 6) * 1000))
    with pytest.raises(Untimely) as refused:
        server.admit(replace(REQUEST, context=context), receiver)
    context, _ = server.sign(CONTROLLER, REQUEST, time_ms=refused.value.refusal.retry_ms)
    assert server.admit(replace(REQUEST, context=context), receiver) is not None


def test_sender_whose_clock_is_ahead_harms_no_other_sender(ring: KeyRing) -> None:
    """It fills its memory with later times than those of the others."""
    clock = Clock()
    server = Signer(Mode.REQUIRED, ring, now=clock, clock=clock)
    skewed = Signer(Mode.REQUIRED, ring, now=lambda: clock() + 90, clock=clock)
    server._replays = Replays(most=100)
    for number in range(300):
        for sender, signer in (("cyborg-api@skewed", skewed), ("cyborg-api@right", server)):
            if sender == "cyborg-api@skewed" or number % 10 == 0:
                request = replace(REQUEST, context={"sender": sender})
                context, _ = signer.sign(CONTROLLER, request)
                assert server.admit(replace(request, context=context), ANYBODY) is not None
        clock.now += 0.1


def test_refused_request_is_not_remembered(signer: Callable[[Mode], Signer]) -> None:
    """Otherwise a copy with a wrong signature would make the real request a replay."""
    server = signer(Mode.REQUIRED)
    request, _ = sent(server)
    with pytest.raises(Refused):
        server.admit(replace(request, verb="x"), ANYBODY)
    assert server.admit(request, ANYBODY) is not None


def test_full_memory_of_replays_refuses_what_it_has_forgotten() -> None:
    replays = Replays(memory=10.0, most=3)
    for number in range(5):
        assert replays.add("busy", "", f"n{number}", sent_ms=number, now=5) is None
    for number in range(2, 5):
        with pytest.raises(Refused):
            replays.add("busy", "", f"n{number}", sent_ms=number, now=5)
    retry_ms = replays.add("busy", "", "n1", sent_ms=1, now=5)
    assert retry_ms is not None
    assert replays.add("busy", "", "late", sent_ms=retry_ms, now=5) is None
    assert replays.add("busy", "", "new", sent_ms=6, now=6) is None
    assert replays.add("busy", "other", "n1", sent_ms=1, now=5) is None
    assert replays.add("other", "", "n1", sent_ms=1, now=5) is None
    # A clock that was ahead for a while, and sent much, is right again.
    for number in range(4):
        assert replays.add("wrong", "", f"n{number}", sent_ms=10**9 + number, now=20) is None
    assert replays.add("wrong", "", "late", sent_ms=0, now=20) == 10**9 + 2
    assert replays.add("wrong", "", "late", sent_ms=0, now=31) is None


def test_memory_of_replays_forgets_what_cannot_be_accepted_any_more() -> None:
    replays = Replays(memory=1.0, most=1000)
    for second in range(100):
        replays.add("a", "b", f"n{second}", sent_ms=7, now=second)
    assert len(replays._received["a"]["b"].nonces) == 2


def test_senders_of_one_key_have_a_bounded_memory() -> None:
    replays = Replays(most=10)
    for number in range(1000):
        replays.add("a", f"s{number}", f"n{number}", sent_ms=number, now=1)
    assert sum(len(received.nonces) for received in replays._received["a"].values()) < 100


@pytest.mark.parametrize("mode", Mode)
def test_mode_decides_about_unsigned_messages(
    signer: Callable[[Mode], Signer], mode: Mode, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    subject = signer(mode)
    refusals = 0
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            try:
                assert subject.admit(REQUEST, ANYBODY) is None
                subject.check_reply("conductor", None, {"ok": 1})
            except Refused:
                refusals += 1
        clock.now += 61
        try:
            subject.admit(REQUEST, ANYBODY)
        except Refused:
            refusals += 1
    assert refusals == (4 if mode is Mode.REQUIRED else 0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == {Mode.OFF: 0, Mode.WARN: 3, Mode.REQUIRED: 2}[mode]
    if lines:
        said = "refused" if mode is Mode.REQUIRED else "accepted without a valid signature"
        assert lines[0] == (
            f"Message bind to cyborg-conductor {said}: it has no signature (sender "
            f"'cyborg-api@c', mode {mode.value}). The same reason is logged once per minute."
        )


def test_process_without_keys_signs_nothing() -> None:
    assert Signer(Mode.OFF, None).sign(CONTROLLER, REQUEST) == (REQUEST.context, None)


def test_log_line_has_no_control_characters(
    signer: Callable[[Mode], Signer], caplog: pytest.LogCaptureFixture
) -> None:
    context = {"sender": "x\n\x1b[31m" + "y" * 10_000}
    signer(Mode.WARN).admit(replace(REQUEST, context=context), ANYBODY)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert len(record.getMessage()) < 600


def received(value: Any) -> Any:
    """Return a changed value as JSON brings it; None where Python cannot read it."""
    try:
        return json.loads(malformed.encode(value))
    except (ValueError, RecursionError):
        return None


@given(data=st.data())
@fuzzed(150)
def test_nearly_valid_envelope_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    server = Signer(Mode.REQUIRED, KeyRing(_file(tmp_path_factory), failed=print))
    request, _ = sent(server)
    whole = {"arguments": dict(request.arguments), "context": dict(request.context)}
    value = received(data.draw(malformed.changed(whole)))
    if not isinstance(value, dict) or value == whole:
        return
    arguments, context = value.get("arguments"), value.get("context")
    if not isinstance(arguments, dict) or not isinstance(context, dict):
        return
    if (arguments, {**context, "client_timeout": 0}) == (
        whole["arguments"],
        {**whole["context"], "client_timeout": 0},
    ):
        return
    changed = replace(request, arguments=arguments, context=context)
    with malformed.bounded(), pytest.raises(Refused) as refused:
        server.admit(changed, ANYBODY)
    assert len(str(refused.value)) < 200


@given(
    verb=st.sampled_from([(topic, verb) for topic in COMMANDS for verb in COMMANDS[topic]]),
    arguments=st.dictionaries(st.sampled_from(["host", "epoch", "report", "caller", "task"]), JSON),
    context=st.sampled_from([{}, {"sender": "a@h"}, {"sender": 7, "request_id": ["x"]}]),
)
@fuzzed(150)
def test_unsigned_message_with_malformed_arguments_has_a_declared_answer(
    verb: tuple[str, str], arguments: dict[str, Any], context: dict[str, Any]
) -> None:
    with malformed.bounded():
        reply = getattr(endpoint(verb[0]), verb[1])(context, **arguments)
    assert reply.keys() <= {"ok", "error"}
    assert reply.get("error", {}).get("type") != exception.PeerFault.kind


@given(
    malformed.changed({"error": {"type": "NotFound", "fields": {"what": "device", "key": "x"}}})
    | malformed.changed({"ok": {"a": 1}})
)
@fuzzed(150)
def test_malformed_reply_is_an_answer_or_an_error_of_the_service(reply: Any) -> None:
    value = received(reply)
    with malformed.bounded():
        try:
            unwrap(value, "The conductor", "req-1")
        except exception.CyborgError as error:
            malformed.check_refusal(error)
