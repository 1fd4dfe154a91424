# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for events: their positions, and how the server keeps them without threads."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from cyborg import exception
from cyborg.api import app
from cyborg.api.server import HttpServer
from cyborg.api.watching import EventWatch
from cyborg.db import events
from cyborg.db.engine import Database, Reader
from cyborg.db.transaction import Transaction
from cyborg.tests.fixtures.waiting import PATIENCE, eventually, happened
from cyborg.tests.unit.api.conftest import MakeConf
from cyborg.tests.unit.api.test_doors import certificate, tls
from cyborg.tests.unit.api.world import Client

__all__ = ["certificate"]

VERSION = {"OpenStack-API-Version": "accelerator 2.100"}
NOW = "/v2/events?wait=60"


def write(db: Database, *subjects: str, **more: Any) -> None:
    with db.writer() as tx:
        record(tx, *subjects, **more)


def record(tx: Transaction, *subjects: str, **more: Any) -> None:
    events.record(tx, [events.Entry("device", subject, "enabled", **more) for subject in subjects])


def following(document: Mapping[str, Any]) -> str:
    """Path and query of the link with which a client continues."""
    ((link,),) = [document["events_links"]]
    assert link["rel"] == "next"
    parts = urlsplit(link["href"])
    return f"{parts.path}?{parts.query}"


def subjects(document: Mapping[str, Any]) -> list[str]:
    return [event["subject_uuid"] for event in document["events"]]


def uuids(count: int) -> list[str]:
    return [str(uuid4()) for _ in range(count)]


def get(client: Client, path: str, **more: Any) -> Any:
    return client.send("GET", path, version="accelerator 2.100", **more)


@pytest.mark.parametrize(
    ("query", "field", "reason"),
    [
        ("wait=61", "wait", "between 0 and 60"),
        ("wait=-1", "wait", "whole number"),
        ("wait=soon", "wait", "whole number"),
        ("seen=1", "seen", "goes with wait and marker"),
        ("wait=1&seen=1", "seen", "goes with wait and marker"),
        ("marker=1&seen=1", "seen", "goes with wait and marker"),
        ("wait=1&marker=1&seen=1,x", "seen", "numbers and ranges"),
        ("wait=1&marker=1&seen=2,1", "seen", "must grow"),
        ("wait=1&marker=9223372036854775806&seen=2", "seen", "too large"),
        (f"wait=1&marker=1&seen={'1' * 20_000}", "seen", "longer than"),
        ("wait=1&marker=many", "marker", "whole number"),
        ("wait=1&sort_dir=desc", "sort_dir", "only be asc"),
        ("wait=1&sort_key=at", "sort_key", "only be id"),
        ("wait=1&limit=0", "limit", "at least 1"),
    ],
)
def test_bad_wait_is_refused_by_name(client: Client, query: str, field: str, reason: str) -> None:
    answer = get(client, f"/v2/events?{query}")
    assert answer.status == 400
    sentence = json.loads(answer.body["error_message"])["faultstring"]
    assert field in sentence
    assert reason in sentence


def test_client_that_follows_gets_each_event_once(client: Client, db: Database) -> None:
    write(db, *uuids(3))
    first = get(client, "/v2/events?wait=0&limit=2").body
    assert first["events"] == []
    written = uuids(5)
    write(db, *written)
    read, link = [], following(first)
    for expected in (2, 2, 1, 0):
        answer = get(client, link)
        assert "Retry-After" not in answer.headers
        assert len(answer.body["events"]) == expected
        read += subjects(answer.body)
        link = following(answer.body)
    assert read == written
    assert parse_qs(urlsplit(link).query)["limit"] == ["2"]


def test_client_that_follows_since_a_time_gets_older_events(client: Client, db: Database) -> None:
    written = uuids(3)
    write(db, *written)
    answer = get(client, "/v2/events?wait=60&since=2020-01-01T00:00Z")
    assert set(written) <= set(subjects(answer.body))
    later = get(client, following(answer.body)).body
    assert later["events"] == []
    future = get(client, "/v2/events?wait=60&since=2999-01-01T00:00Z").body
    write(db, *uuids(1))
    assert get(client, following(future)).body["events"] == []


def test_server_without_waits_answers_at_once_and_says_when_to_repeat(client: Client) -> None:
    """Other web servers would hold a thread for each."""
    first = get(client, NOW)
    assert "Retry-After" not in first.headers
    answer = get(client, following(first.body))
    assert (answer.status, answer.body["events"]) == (200, [])
    assert answer.headers["Retry-After"] == "5"


def test_project_that_follows_sees_its_own_events_only(
    with_rules: Callable[..., Client], db: Database, facts: Mapping[str, str]
) -> None:
    """Without the names of hosts."""
    client = with_rules({"cyborg:event:get_all": "role:reader and project_id:%(project_id)s"})
    first = {name: get(client, NOW, as_=name).body for name in ("member", "stranger")}
    host = "host-1"
    with db.writer() as tx:
        own = events.Entry("arq", facts["arq"], "Bound", hostname=host, reason=f"on {host}")
        events.record(tx, [own, events.Entry("device", facts["device"], "lost", hostname=host)])
    seen = {name: get(client, following(first[name]), as_=name).body["events"] for name in first}
    assert [event["subject_uuid"] for event in seen["member"]] == [facts["arq"]]
    assert seen["stranger"] == []
    assert host not in json.dumps(seen)
    assert get(client, "/v2/events?wait=1&host=host-1", as_="member").status == 403


class Watcher:
    """A client with a connection of its own."""

    def __init__(self, server: HttpServer) -> None:
        self.connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE)

    def send(self, path: str) -> None:
        self.connection.request("GET", path, headers=VERSION)

    def answer(self) -> dict[str, Any]:
        response = self.connection.getresponse()
        document: dict[str, Any] = json.loads(response.read())
        assert response.status == 200, document
        document["retry"] = response.headers["Retry-After"]
        return document

    def get(self, path: str) -> dict[str, Any]:
        self.send(path)
        return self.answer()


class FailingReader(Reader):
    """A database that goes away when it is told to."""

    failed: threading.Event | None = None

    @contextmanager
    def reader(self) -> Iterator[Transaction]:
        """See Reader."""
        if self.failed is not None:
            self.failed.set()
            raise exception.DatabaseUnavailable(peer="The database", reason="gone")
        with super().reader() as tx:
            yield tx


@dataclass
class Site:
    """A server, what wakes its requests, and the database that it sees."""

    server: HttpServer
    watch: EventWatch
    reader: FailingReader
    endings: ExitStack

    def watcher(self) -> Watcher:
        watcher = Watcher(self.server)
        self.endings.callback(watcher.connection.close)
        return watcher

    def waiting(self, count: int) -> None:
        """Wait until so many requests wait."""
        eventually(lambda: self.watch.waiting == count, f"{count} requests wait")


Serve = Callable[..., Site]


@pytest.fixture
def serve(make_conf: MakeConf, database: Database, conductor: Any, db: Database) -> Iterator[Serve]:
    with ExitStack() as endings:

        def start(text: str = "", limit: int = 200) -> Site:
            conf = make_conf(f"[api]\nport = 0\nauth_strategy = noauth\n{text}")
            reader = FailingReader(database.engine.url.render_as_string(hide_password=False))
            endings.callback(reader.close)
            watch = EventWatch(reader, limit=limit)
            api = app.build(conf, reader=reader, conductor=conductor, watch=watch)
            server = HttpServer(api, conf)
            server.start()
            endings.callback(server.wait)
            endings.callback(server.stop)
            return Site(server, watch, reader, endings)

        yield start


def test_hundred_watchers_hold_no_thread_and_get_the_same(serve: Serve, db: Database) -> None:
    site = serve("api_workers = 2\n")
    watchers = [site.watcher() for _ in range(100)]
    links = [following(one.get(NOW)) for one in watchers]
    before = threading.active_count()
    for one, link in zip(watchers, links, strict=True):
        one.send(link)
    site.waiting(100)
    # The thread that polls.
    assert threading.active_count() <= before + 1
    # And others are served.
    site.watcher().get("/v2/events?limit=1")
    written = uuids(2)
    write(db, *written)
    assert [subjects(one.answer()) for one in watchers] == [written] * 100


def test_watcher_of_another_device_is_left_alone(serve: Serve, db: Database) -> None:
    site = serve()
    device, other = uuids(2)
    mine, theirs = site.watcher(), site.watcher()
    links = [following(one.get(f"{NOW}&device={device}")) for one in (mine, theirs)]
    mine.send(links[0])
    theirs.send(links[1].replace(device, other))
    site.waiting(2)
    write(db, device)
    assert subjects(mine.answer()) == [device]
    write(db, other)
    assert subjects(theirs.answer()) == [other]


def test_polls_cost_two_statements_whatever_waits(
    reader: Reader, statements: list[str], db: Database
) -> None:
    watch = EventWatch(reader, limit=100, interval=3600)
    woken: list[int] = []
    watch.poll()
    assert statements == []
    for number in range(100):
        watch.begin(watch.mark(), {}, partial(woken.append, number))
    eventually(lambda: len(woken) == 100)
    del statements[:]
    for number in range(100):
        watch.begin(watch.mark(), {"device": str(number % 2)}, partial(woken.append, number))
    watch.poll()
    assert len(statements) == 2
    assert len(woken) == 100
    write(db, "0")
    watch.poll()
    assert len(statements) == 4
    assert sorted(woken[100:]) == list(range(0, 100, 2))
    write(db, *map(str, range(2, 1500)))
    watch.poll()
    assert len(statements) == 6
    assert len(woken) == 200
    for _ in range(20):
        watch.poll()
    assert len(statements) < 6 + 2 * 12


def test_event_between_the_look_and_the_wait_is_not_missed(reader: Reader, db: Database) -> None:
    watch = EventWatch(reader, limit=100, interval=3600)
    woken: list[str] = []
    watch.begin(watch.mark(), {}, lambda: woken.append("first"))
    eventually(lambda: woken == ["first"])
    early = watch.mark()
    # The request looks here, and is slow.
    for number in range(3):
        write(db, str(number))
        watch.poll()
    late = watch.mark()
    watch.begin(early, {"device": "0"}, lambda: woken.append("early"))
    watch.begin(late, {"device": "0"}, lambda: woken.append("late"))
    watch.poll()
    assert woken == ["first", "early"]
    for _ in range(30):
        watch.poll()
    # So many polls ago that their events are forgotten.
    watch.begin(early, {"device": "none"}, lambda: woken.append("too early"))
    watch.poll()
    assert woken == ["first", "early", "too early"]


def test_wait_ends_with_an_empty_answer(serve: Serve) -> None:
    one = serve().watcher()
    link = following(one.get("/v2/events?wait=1"))
    answer = one.get(link)
    assert (answer["events"], answer["retry"]) == ([], None)
    # The connection lives on, and so does the position.
    assert one.get(following(answer))["events"] == []


def test_stop_answers_those_who_wait(serve: Serve, db: Database) -> None:
    site = serve()
    watchers = [site.watcher() for _ in range(5)]
    for one in watchers:
        one.send(following(one.get(NOW)))
    site.waiting(5)
    site.server.stop()
    site.server.wait()
    answers = [one.answer() for one in watchers]
    assert [answer["events"] for answer in answers] == [[]] * 5
    assert site.watch.waiting == 0
    # Another process goes on where this one has ended.
    write(db, *(written := uuids(1)))
    assert subjects(serve().watcher().get(following(answers[0]))) == written


def test_client_that_leaves_frees_its_place(serve: Serve) -> None:
    site = serve(limit=1)
    first, second = site.watcher(), site.watcher()
    link = following(first.get(NOW))
    first.send(link)
    site.waiting(1)
    # Too many: an answer that is as good, but early.
    answer = second.get(link)
    assert (answer["events"], answer["retry"]) == ([], "5")
    first.connection.close()
    site.waiting(0)
    second.send(link)
    site.waiting(1)


def test_tls_client_that_leaves_frees_its_place(
    serve: Serve, certificate: tuple[Path, Path]
) -> None:
    site = serve(tls(certificate))
    context = ssl.create_default_context(cafile=str(certificate[0]))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", site.server.address[1], timeout=PATIENCE, context=context
    )
    with closing(connection):
        connection.request("GET", NOW, headers=VERSION)
        link = following(json.loads(connection.getresponse().read()))
        connection.request("GET", link, headers=VERSION)
        site.waiting(1)
    site.waiting(0)


def test_client_that_closes_its_side_while_it_waits_has_left(serve: Serve) -> None:
    site = serve()
    one = site.watcher()
    one.send(following(one.get(NOW)))
    site.waiting(1)
    one.connection.sock.shutdown(socket.SHUT_WR)
    site.waiting(0)
    assert one.connection.sock.recv(1) == b""


def test_request_that_is_woken_is_authorised_again(
    serve: Serve, db: Database, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("{}")
    site = serve(f"[oslo_policy]\npolicy_file = {file}\n")
    one = site.watcher()
    # The first who waits is woken once without an event.
    one.send(following(one.get(NOW)))
    site.waiting(1)
    write(db, *uuids(1))
    one.send(following(one.answer()))
    site.waiting(1)
    # The server may read the file at any time.
    newer = tmp_path / "newer.yaml"
    newer.write_text('{"cyborg:event:get_all": "!"}')
    newer.replace(file)
    write(db, *uuids(1))
    assert one.connection.getresponse().status == 403


def test_requests_wait_through_an_outage_of_the_database(serve: Serve, db: Database) -> None:
    """They would only ask again, all at once."""
    site = serve()
    one = site.watcher()
    one.send(following(one.get(NOW)))
    site.waiting(1)
    site.reader.failed = failed = threading.Event()
    happened(failed)
    assert site.watch.waiting == 1
    site.reader.failed = None
    write(db, *(written := uuids(1)))
    assert subjects(one.answer()) == written
