# SPDX-License-Identifier: Apache-2.0
"""What each persona gets by each request, of its own project, of another one, and of nobody.

``personas.txt`` has one line for each request, whose object it is, and answer: the tables in which
the line stands, the status, the fields that have a value, what the answer tells (see
``projects.TELLS``), and who gets it. Read the lines of other projects for tells that end in ``b``,
``c`` or ``s``. A table is that of a microversion with the new defaults of the policy rules; ``old``
and a microversion, with the old defaults. A full run makes all tables, another one that the commit
decides.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import webtest

from cyborg.api import app
from cyborg.db.engine import Database, Reader
from cyborg.tests import committed
from cyborg.tests.fixtures import choice
from cyborg.tests.unit.api import projects
from cyborg.tests.unit.api.conductor import RecordedConductor
from cyborg.tests.unit.api.world import NEW_DEVICE, Client

FILE: Final = Path(__file__).with_name("personas.txt")
#: Persona → its token and its service token.
PERSONAS: Final[Mapping[str, tuple[str | None, str | None]]] = {
    **{
        name: (name, None)
        for name in (
            *("admin", "bare-admin", "elsewhere-admin", "operator", "manager", "member"),
            *("reader", "nobody", "stranger", "elsewhere-manager", "service", "no-service"),
            *("system-admin", "domain-admin", "expired-member"),
        )
    },
    "nova-for-member": ("member", "service"),
    "nova-for-nobody": ("nobody", "service"),
    "service-twice": ("service", "service"),
    "no-token": (None, None),
}
#: Name of a table → microversion and whether the new defaults are enforced.
TABLES: Final = {
    "2.3": ("2.3", True),
    "2.100": ("2.100", True),
    "old-2.3": ("2.3", False),
    "old-2.100": ("2.100", False),
}
#: The tables that this run makes; who writes the file anew needs all.
CHOSEN: Final = list(TABLES) if committed.REWRITE else choice.chosen(TABLES, "personas")
#: Persona that reaches only the objects of its project → the letters of these objects.
LIMITED: Final = {
    **dict.fromkeys(("manager", "member", "reader", "nobody"), "a"),
    **dict.fromkeys(("system-admin", "domain-admin", "expired-member", "no-token"), ""),
    # The other project shares a device of host-a.
    **dict.fromkeys(("stranger", "elsewhere-manager"), "abs"),
    **dict.fromkeys(("service", "service-twice", "no-service"), "c"),
}
#: Kinds of tells that say where something is; from 2.100 on nobody of a project knows them.
PLACES: Final = ("host", "address", "provider", "option")
MANAGERS: Final = frozenset({"manager", "elsewhere-manager"})
_LETTERS: Final = ("-a", "-b", "-c", "-s")
#: Letter of ``projects`` → whose object it is to the personas of project a.
OWNERSHIP: Final = {"a": "own", "b": "other", "c": "nobody"}

_UNBIND: Final = {"<arq-{x}>": [{"op": "remove", "path": "/hostname"}]}
_PROGRAM: Final = [{"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}]
_PROFILE: Final = {"name": "new", "groups": [{"resources:FPGA": "1"}]}
#: Route → the paths to request, with bodies; ``{x}`` is the letter of the object.
REQUESTS: Final[Mapping[str, list[tuple[str, Any]]]] = {
    "GET accelerator_requests": [
        ("", None),
        ("?instance=<instance-{x}>", None),
        ("?instance=<instance-{x}>&bind_state=resolved", None),
        ("?hostname=host-{x}", None),
        ("?device_rp_uuid=<provider-{x}>", None),
        ("?sort_key=hostname&marker=<arq-{x}>", None),
    ],
    "POST accelerator_requests": [
        ("", {"device_profile_name": "gpu"}),
        ("", {"device_profile_name": "only-{x}"}),
    ],
    "PATCH accelerator_requests": [("", _UNBIND)],
    "DELETE accelerator_requests": [
        ("?arqs=<free-{x}>", None),
        ("?arqs=<arq-{x}>", None),
        ("?instance=<instance-{x}>", None),
    ],
    "GET accelerator_requests/*": [("/<arq-{x}>", None)],
    "PATCH accelerator_requests/*": [("/<arq-{x}>", _UNBIND)],
    "DELETE accelerator_requests/*": [("/<free-{x}>", None)],
    "GET attributes": [("", None), ("?deployable_id=<deployable-{x}>", None)],
    "POST attributes": [("", {"deployable_id": "<deployable-{x}>", "key": "k", "value": "v"})],
    "DELETE attributes": [("", None)],
    "GET attributes/*": [("/<attribute-{x}>", None)],
    "DELETE attributes/*": [("/<attribute-{x}>", None)],
    "GET backends": [("", None), ("?host=host-{x}", None)],
    "GET backends/*": [("/<backend-{x}>", None)],
    "GET capacity": [
        ("", None),
        ("?profile=only-{x}", None),
        ("?by=host", None),
        ("?host=host-{x}", None),
    ],
    "GET deployables": [("", None), ("?name=host-{x}_Fake", None)],
    "GET deployables/*": [("/<deployable-{x}>", None)],
    "PATCH deployables/*/program": [("/<deployable-{x}>/program", _PROGRAM)],
    "PATCH deployables/*/program/*": [
        ("/<deployable-{x}>/program/<deployable-{x}>", _PROGRAM),
    ],
    "GET device_profiles": [("", None)],
    "POST device_profiles": [("", [_PROFILE])],
    "DELETE device_profiles": [("?value=pair", None), ("?value=only-{x}", None)],
    "GET device_profiles/*": [("/gpu", None), ("/only-{x}", None), ("/<profile-{x}>", None)],
    "GET device_profiles/*/explain": [
        ("/gpu/explain", None),
        ("/only-{x}/explain", None),
        ("/gpu/explain?flavor=m1", None),
    ],
    "POST device_profiles/explain": [("/explain", {"groups": [{"resources:GPU": "1"}]})],
    "PATCH device_profiles/*": [
        ("/pair", {"description": "d"}),
        ("/only-{x}", {"description": "d"}),
    ],
    "DELETE device_profiles/*": [("/pair", None), ("/<profile-{x}>", None)],
    "GET devices": [
        ("", None),
        ("?hostname=host-{x}", None),
        ("?instance=<instance-{x}>", None),
        ("?labels=rack=label-{x}", None),
        ("?sort_key=hostname&marker=<device-{x}>", None),
        ("?in_use=true", None),
    ],
    "POST devices": [("", NEW_DEVICE)],
    "GET devices/*": [("/<device-{x}>", None)],
    "PATCH devices/*": [
        ("/<device-{x}>", {"labels": {"k": "v"}}),
        ("/<device-{x}>", {"status": "maintaining"}),
    ],
    "DELETE devices/*": [("/<device-{x}>", None)],
    "GET devices/*/drain": [("/<device-{x}>/drain", None)],
    "POST devices/*/enable": [("/<device-{x}>/enable", None)],
    "POST devices/*/disable": [("/<device-{x}>/disable", None)],
    "GET drivers": [("", None), ("?host=host-{x}", None)],
    "POST drivers": [("", {"driver": "d"})],
    "GET drivers/*": [("/<driver-{x}>", None)],
    "PATCH drivers/*": [("/<driver-{x}>", {"enabled": True})],
    "DELETE drivers/*": [("/<driver-{x}>", None)],
    "GET events": [("", None), ("?arq=<arq-{x}>", None)],
    "GET hardware": [("", None), ("?host=host-{x}", None)],
    "GET hardware/*": [("/<hardware-{x}>", None)],
    "POST instances/*/accelerators": [("/<instance-{x}>/accelerators", {})],
    "DELETE instances/*/accelerators": [("/<instance-{x}>/accelerators", None)],
    "DELETE instances/*/accelerators/*": [("/<instance-{x}>/accelerators/<arq-{x}>", None)],
    "GET operations": [("", None)],
    "GET operations/*": [("/<operation-{x}>", None)],
    "GET services": [("", None), ("?host=host-{x}", None)],
    "POST services/discover": [("/discover", {})],
    "GET services/*": [("/<agent-{x}>", None)],
    "PATCH services/*": [("/<agent-{x}>", {"status": "disabled"})],
    "GET services/*/drain": [("/<agent-{x}>/drain", None)],
    "DELETE services/*": [("/<agent-{x}>", None)],
    "GET limits": [("", None)],
    "GET usage": [
        ("", None),
        ("?host=host-{x}", None),
        ("?group_by=project_id", None),
        ("?group_by=project,profile,instance&start=2020-01-01&end=2020-02-01", None),
        ("?group_by=host&host=host-{x}&start=2020-01-01&end=2020-02-01", None),
    ],
    "POST vendordata": [("", {"instance-id": "<instance-{x}>"})],
}


def routes() -> Iterator[str]:
    """Yield all routes of the API."""
    for noun in app.NOUNS:
        for path, methods in noun.routes.items():
            for method in methods:
                yield f"{method} {noun.collection}/{path}".rstrip("/")


def fields(body: Any) -> list[str]:
    """Return the names that have a value in an answer: those of its items, if it is a list."""
    if not isinstance(body, dict) or "error_message" in body:
        return []
    for value in body.values():
        if len(body) == 1 and isinstance(value, list | dict):
            items = value if isinstance(value, list) else [value]
            return sorted({name for item in items for name, kept in item.items() if kept})
    return sorted(name for name, kept in body.items() if kept)


def tells(text: str) -> list[str]:
    """Return the names of ``projects.TELLS`` that a text tells."""
    plain = text.replace('\\"', '"')
    return [name for name, form in projects.TELLS.items() if form.search(plain)]


@dataclass(frozen=True)
class Asked:
    """A request of the table and its answer to one persona."""

    version: str
    persona: str
    status: int
    fields: tuple[str, ...]
    told: tuple[str, ...]

    @property
    def leaks(self) -> list[str]:
        """Return what the answer tells that the persona must not know."""
        if self.persona not in LIMITED:
            return []
        own = LIMITED[self.persona]
        foreign = [name for name in self.told if name[-2:] in _LETTERS and name[-1] not in own]
        places = [name for name in self.told if name[:-2] in PLACES]
        if self.version == "2.100":
            return foreign + places
        # Managers see the hardware of the cloud, but not what other projects do with it.
        hardware = places if self.persona in MANAGERS else []
        return [name for name in foreign if name not in hardware]

    def __str__(self) -> str:
        """Return the answer as the table shows it."""
        told = f"[{' '.join(self.told)}]"
        return " ".join(filter(None, [str(self.status), ",".join(self.fields), told]))


class Cloud:
    """The cloud of two projects; it is restored after each request that may have changed it."""

    def __init__(self, db: Database, client: Client, conductor: RecordedConductor) -> None:
        self._client = client
        self._conductor = conductor
        self._file = str(db.engine.url.database)
        self._copy = sqlite3.connect(":memory:")
        self._transfer(to_file=False)

    def ask(self, request: str, body: Any, persona: str, version: str) -> Asked:
        """Send a request as a persona."""
        token, service = PERSONAS[persona]
        answer = self._client.ask(request, body, as_=token, service=service, version=version)
        if not request.startswith("GET") and answer.status < 400:
            self._transfer(to_file=True)
            self._conductor.reset()
        told = tells(json.dumps(answer.body))
        if answer.status >= 400:
            # An error may repeat what the client has sent.
            sent = tells(self._client.fill(f"{request} {json.dumps(body)}"))
            told = [name for name in told if name not in sent]
        shown = fields(answer.body) if request.startswith("GET") else []
        return Asked(version, persona, answer.status, tuple(shown), tuple(told))

    def _transfer(self, *, to_file: bool) -> None:
        with closing(sqlite3.connect(self._file)) as stored:
            source, target = (self._copy, stored) if to_file else (stored, self._copy)
            source.backup(target)


@pytest.fixture
def facts(db: Database) -> Mapping[str, str]:
    return projects.populate(db)


@pytest.fixture(scope="module")
def apps(
    tmp_path_factory: pytest.TempPathFactory,
    make_session_conf: Callable[[Path, str], Any],
    reader: Reader,
    process: RecordedConductor,
) -> Mapping[bool, webtest.TestApp]:
    """The API with the new and with the old defaults of its policy rules."""
    made = {}
    for enforced in (True, False):
        text = f"[oslo_policy]\nenforce_new_defaults = {enforced}\n"
        conf = make_session_conf(tmp_path_factory.mktemp("defaults"), text)
        wsgi = app.build(conf, reader=reader, conductor=process)  # type: ignore[arg-type]
        made[enforced] = webtest.TestApp(wsgi)
    return made


def answers(cloud: Cloud, version: str) -> Iterator[tuple[str, list[Asked]]]:
    """Yield each request of the table, as it shows it, with the answers to all personas."""
    for route, requests in REQUESTS.items():
        method, _, path = route.partition(" ")
        noun = path.partition("/")[0]
        for rest, body in requests:
            text = json.dumps(body)
            shown = f"{method} /{noun}{rest}".replace("<", "{").replace(">", "}")
            if isinstance(body, dict) and len(requests) > 1:
                shown += f" {'+'.join(body)}"
            owned = "{x}" in rest + text
            for x in OWNERSHIP if owned else "a":
                request = f"{method} /v2/{noun}{rest}".replace("{x}", x)
                sent = None if body is None else json.loads(text.replace("{x}", x))
                whose = OWNERSHIP[x] if owned else "all"
                asked = [cloud.ask(request, sent, persona, version) for persona in PERSONAS]
                yield f"{shown.replace('{x}', 'x')} ({whose}):", asked


def test_every_route_is_in_the_table() -> None:
    assert set(routes()) == set(REQUESTS)


@pytest.mark.filterwarnings("ignore:Policy:UserWarning")
def test_personas_get_what_the_table_says_and_nothing_of_other_projects(
    apps: Mapping[bool, webtest.TestApp],
    db: Database,
    conductor: RecordedConductor,
    tokens: Any,
    facts: Mapping[str, str],
) -> None:
    lines: dict[str, list[str]] = {}
    leaks = []
    for table in CHOSEN:
        version, enforced = TABLES[table]
        cloud = Cloud(db, Client(apps[enforced], facts, conductor.calls), conductor)
        for request, asked in answers(cloud, version):
            who: dict[str, list[str]] = {}
            for answer in asked:
                # 503: attach and detach ask Nova first.
                assert answer.status in (503, *range(200, 500)), request
                who.setdefault(str(answer), []).append(answer.persona)
                if answer.leaks:
                    leaks.append((table, request, answer.persona, answer.leaks))
            for line in sorted(who):
                lines.setdefault(f"{request} {line} {' '.join(who[line])}", []).append(table)
    assert leaks == []
    shown = [f"{'+'.join(tables)} {line}" for line, tables in lines.items()]
    told = committed.lines_of(FILE, shown)
    if len(CHOSEN) < len(TABLES):
        shown, told = sorted(lines), sorted(lines_of(CHOSEN[0], told))
    assert shown == told, committed.advice(
        "personas.txt does not show what personas get.", "unit/api/test_personas.py"
    )


def lines_of(table: str, shown: list[str]) -> list[str]:
    """Return the lines of one table, without the names of the tables."""
    parts = [line.partition(" ") for line in shown]
    return [line for tables, _, line in parts if table in tables.split("+")]
