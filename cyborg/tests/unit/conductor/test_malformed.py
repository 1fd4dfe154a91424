# SPDX-License-Identifier: Apache-2.0
"""Messages that are nearly valid, to a conductor and its database: each is stored or refused."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database, Settings
from cyborg.db.models import METADATA
from cyborg.model import wire
from cyborg.model.device import Confidence, Hardware, Identity, IdentityKind, Topology
from cyborg.model.health import Condition, DeviceHealth
from cyborg.model.report import (
    AgentHeartbeat,
    DriverOption,
    DriverReport,
    DriverState,
    InstalledDriver,
    Report,
)
from cyborg.rpc.command import commands
from cyborg.rpc.transport import CONDUCTOR_AGENTS_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import AgentRequest, ToConductor
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.direct_bus import DirectServer
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.properties import fuzzed, given, st
from cyborg.tests.fixtures.single_step import Environment, RunningClock
from cyborg.tests.unit.rpc import samples
from cyborg_cli.text import escaped_line

HOST = "host-1"
CONTEXT = {"sender": f"cyborg-agent@{HOST}", "request_id": "req-1"}
DRIVER = InstalledDriver("bench_driver", DriverState.FAILED, "bench:Driver", "FPGA", "1.0")
HEARTBEAT = AgentHeartbeat(
    *(HOST, (HOST, f"{HOST}.example.org"), "18.0.0", f"agent@{HOST}", None),
    status=DriverState.FAILED,
    drivers=(DRIVER,),
    bus_error="the bus refuses",
    failure="no disk",
)


def full_report() -> Report:
    """A report with a value in each field."""
    (found,) = report_of(HOST, 2).drivers
    device = replace(
        found.devices[0],
        identity=(Identity(IdentityKind.VENDOR, "GPU-1", Confidence.UNIQUE),),
        topology=Topology("0000:3a:00.0", "0000:3b:00.0", ("0000:3c:00.0",)),
        std_board_info={"device_id": "0xabcd"},
        vendor_board_info="board",
    )
    entry = Hardware("0000:01:00.0", "FPGA", "0xabcd", "card", offered=False, reason="in use")
    driver = replace(
        found,
        devices=(device, *found.devices[1:]),
        hardware=(*(found.hardware or ()), replace(entry, capability={"aes": {"num": 1}})),
        endpoint="bench:Driver",
        type="FPGA",
        version="1.0",
        accepts=(DriverOption("name", "group", "string", "default", "help"),),
        health=(DeviceHealth(device.key, Condition.DRAIN, ("hot",)),),
    )
    broken = DriverReport("other", DriverState.FAILED, error="it cannot be loaded")
    return Report((driver, broken))


FULL = wire.dump(full_report())
NAMED = commands(ToConductor)
#: Valid arguments of each verb.
VALID = {verb: samples.arguments(command) for verb, command in NAMED.items()}
Servers = Mapping[str, DirectServer]
#: Columns of text.
COLUMNS = [
    column
    for table in METADATA.sorted_tables
    for column in table.columns
    if isinstance(column.type, sa.String | sa.JSON)
]


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path: Path = tmp_path_factory.mktemp("malformed")
    db = Database(f"sqlite:///{path}/cyborg.sqlite", settings=Settings(sqlite_synchronous=False))
    METADATA.create_all(db.engine)
    yield db
    db.close()


@pytest.fixture
def servers(database: Database) -> Iterator[Servers]:
    """By verb."""
    url = database.engine.url.render_as_string(hide_password=False)
    environment = Environment(database_url=url, clock=RunningClock())
    conductor, exchange = environment.conductor(), environment.exchange
    conductor.renew()
    conductor.serve()
    of_api = exchange.find(CONDUCTOR_TOPIC, None)
    of_agents = exchange.find(CONDUCTOR_AGENTS_TOPIC, None)
    assert of_api is not None
    assert of_agents is not None
    yield {
        verb: of_agents if issubclass(command, AgentRequest) else of_api
        for verb, command in NAMED.items()
    }
    conductor.stop()
    environment.close()


def ask(servers: Servers, verb: str, arguments: Any) -> dict[str, Any]:
    """Return the reply to a message; its arguments are JSON as they arrive."""
    with malformed.bounded():
        reply: dict[str, Any] = json.loads(
            servers[verb].answer(verb, json.dumps([CONTEXT, arguments]))
        )
    error = reply.get("error", {})
    assert error.get("type") != "PeerFault", error
    return reply


def check_rows(db: Database) -> None:
    """Fail for a text that not every database can hold, and for a value of another type."""
    with db.engine.connect() as connection:
        for column in COLUMNS:
            raw = sa.type_coerce(column, sa.String)
            rows = connection.execute(sa.select(raw).where(column.is_not(None)).distinct())
            for (text,) in rows:
                assert isinstance(text, str), (column, text)
                assert "\0" not in text, (column, text)


def received(arguments: Any) -> dict[str, Any]:
    """Return changed arguments as a receiver gets them; no call has other than an object."""
    value = json.loads(malformed.encode(arguments))
    return value if isinstance(value, dict) else {"value": value}


def decodable(arguments: Any) -> bool:
    """Whether oslo.messaging can pass the message on: Python reads and writes it as JSON."""
    try:
        json.dumps(received(arguments))
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("field", ["host", "version", "endpoint"])
def test_heartbeat_of_an_api_that_no_database_holds_is_refused(
    database: Database, servers: Servers, field: str
) -> None:
    valid = {"host": "control", "version": "18.0.0", "endpoint": "http://control"}
    reply = ask(servers, "api_heartbeat", {**valid, field: "\0"})
    assert reply["error"]["type"] == "Invalid"
    check_rows(database)


def texts_in(value: Any, *place: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the places of the texts in a JSON value."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts_in(item, *place, key)


@pytest.mark.parametrize("text", chosen(["\0", "\ud800", "\x1b[2K", ""], "odd texts"), ids=ascii)
@pytest.mark.parametrize("argument", ["heartbeat", "report"])
def test_text_that_no_database_holds_costs_nothing_else(
    database: Database,
    servers: Servers,
    caplog: pytest.LogCaptureFixture,
    argument: str,
    text: str,
) -> None:
    """A driver of a vendor, or a strange file name, must not stop the reports of its host.

    Nor does it reach the log as it is: a terminal would obey an escape sequence.
    """
    valid = {"heartbeat": wire.dump(HEARTBEAT), "report": FULL}[argument]
    faults = []
    for *steps, last in texts_in(valid["body"]):
        sent = copy.deepcopy(valid)
        inner = sent["body"]
        for step in steps:
            inner = inner[step]
        inner[last] = text
        epoch = ask(servers, "heartbeat", {"heartbeat": wire.dump(HEARTBEAT)})["ok"]["body"][
            "epoch"
        ]
        arguments: dict[str, Any] = {"heartbeat": sent}
        if argument == "report":
            arguments = {"report": sent, "host": HOST, "epoch": epoch}
        try:
            ask(servers, argument, arguments)
            check_rows(database)
        except AssertionError as fault:
            faults.append((*steps, last, str(fault)[:80]))
    assert faults == []
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [escaped_line(line) for line in lines]


@given(
    malformed.changed({"heartbeat": wire.dump(HEARTBEAT)}).filter(decodable).map(received),
    malformed.changed({"report": FULL}).filter(decodable).map(received),
)
@fuzzed(60)
def test_nearly_valid_report_is_stored_or_refused(
    database: Database, servers: Servers, heartbeat: Any, report: Any
) -> None:
    ask(servers, "heartbeat", heartbeat)
    alive = ask(servers, "heartbeat", {"heartbeat": wire.dump(HEARTBEAT)})
    epoch = alive["ok"]["body"]["epoch"]
    ask(servers, "report", {"host": HOST, "epoch": epoch, **report})
    valid = wire.dump(Report(report_of(HOST, 1).drivers))
    stored = ask(servers, "report", {"host": HOST, "epoch": epoch, "report": valid})
    assert "ok" in stored, "the report before must not prevent this one"
    check_rows(database)


@given(
    st.sampled_from(sorted(VALID)).flatmap(
        lambda verb: st.tuples(
            st.just(verb), malformed.changed(VALID[verb]).filter(decodable).map(received)
        )
    )
)
@fuzzed(150)
def test_nearly_valid_message_is_answered(
    database: Database, servers: Servers, message: tuple[str, Any]
) -> None:
    reply = ask(servers, *message)
    if "ok" in reply:
        check_rows(database)
