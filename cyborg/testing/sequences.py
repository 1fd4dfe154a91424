# SPDX-License-Identifier: Apache-2.0
"""Who calls whom, written down while it happens, and drawn as a sequence diagram in plain text.

What is heard are the boundaries of ``cyborg.testing.crash``: each process has a ``Witness`` for its
fate. A whole transaction is one arrow, and so is all that is read in a row.
"""

import re
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from cyborg.db.models import METADATA
from cyborg.drivers.base import Driver
from cyborg.testing.counting import Statement
from cyborg.testing.crash import Fate, Kind
from cyborg.testing.fake_host import FakeHost

CLIENT, API, CONDUCTOR, DATABASE = "client", "API", "conductor", "database"
AGENT, DRIVER, HOST, PLACEMENT = "agent", "driver", "host", "Placement"
#: Nova's API and conductor, and the compute service of the instance's host.
NOVA, NOVA_COMPUTE = "Nova", "nova-compute"
#: From left to right; but who begins comes first.
PLACES = (CLIENT, API, CONDUCTOR, DATABASE, AGENT, DRIVER, HOST, PLACEMENT, NOVA, NOVA_COMPUTE)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWN_NAME = re.compile(r"\bCUSTOM_\w+")
_TABLE = re.compile(r"\b(?:FROM|JOIN)\s+[\"`]?(\w+)")
_GAP = "  "
#: Whatever a driver reads from its host, however often in a row.
_LOOK = "look"
#: How wide the words beside a diagram may be.
_WIDE = 58


@dataclass(frozen=True)
class Arrow:
    """One step; ``back`` is an answer."""

    source: str
    target: str
    text: str
    back: bool = False


@dataclass
class _Session:
    """What a process has done in its database since it last spoke to anybody else."""

    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class Tape:
    """The steps of all processes, in their order; those that come while nobody records are lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrows: list[Arrow] | None = None
        self._sessions: dict[str, _Session] = {}
        self._unanswered: list[tuple[str, str]] = []
        self._transactions = 0

    @contextmanager
    def recording(self) -> Iterator[list[Arrow]]:
        """Write down all that happens in the block."""
        self._transactions = 0
        self._sessions.clear()
        made: list[Arrow] = []
        self._arrows = made
        try:
            yield made
        finally:
            self._arrows = None

    def arrow(self, source: str, target: str, text: str, *, back: bool = False) -> None:
        """A step."""
        with self._lock:
            self._end_reading(source)
            self._add(Arrow(source, target, shown(text), back))

    def request(self, source: str, target: str, text: str) -> None:
        """A step whose answer is one as well."""
        self.arrow(source, target, text)
        self._unanswered.append((source, target))

    def answer(self, source: str, text: str) -> None:
        """The answer of a process to what it was asked last."""
        asked = next(one for one in reversed(self._unanswered) if one[1] == source)
        self._unanswered.remove(asked)
        self.arrow(source, asked[0], text, back=True)

    def statement(self, who: str, text: str) -> None:
        """A process sends a statement; what it reads in a transaction goes without saying."""
        one = Statement(text, None, many=False)
        with self._lock:
            session = self._sessions.setdefault(who, _Session())
            session.written += [name for name in METADATA.tables if one.touches(name)]
            if one.word == "SELECT":
                session.read += [name for name in _TABLE.findall(text) if name in METADATA.tables]

    def commit(self, who: str) -> None:
        """A process ends a transaction; one that changed nothing was a look."""
        with self._lock:
            session = self._sessions.get(who, _Session())
            if not session.written:
                return
            del self._sessions[who]
            self._transactions += self._arrows is not None
            tables = ", ".join(dict.fromkeys(session.written))
            self._add(Arrow(who, DATABASE, f"tx {self._transactions}: {tables}"))

    def _end_reading(self, who: str) -> None:
        session = self._sessions.pop(who, _Session())
        if session.read or session.written:
            # What was written and not committed by now would be a fault, and is to be seen.
            left = [f"{name} (open)" for name in session.written]
            tables = ", ".join(dict.fromkeys([*session.read, *left]))
            self._add(Arrow(who, DATABASE, f"read: {tables}"))

    def _add(self, one: Arrow) -> None:
        if self._arrows is None or (one.text == _LOOK and self._arrows[-1:] == [one]):
            return
        self._arrows.append(one)


class Witness(Fate):
    """The fate of a process that does not die: what it passes goes onto a tape."""

    def __init__(self, who: str, tape: Tape) -> None:
        super().__init__()
        self._who = who
        self._tape = tape

    def before(self, kind: Kind, text: str) -> int:
        """See Fate."""
        who, tape = self._who, self._tape
        if kind is Kind.SQL:
            tape.statement(who, text)
        elif kind is Kind.COMMIT:
            tape.commit(who)
        elif kind is Kind.HTTP:
            peer, _, request = text.partition(" ")
            tape.arrow(who, peer, request)
        elif kind is Kind.RPC and text.startswith("request "):
            verb = text.removeprefix("request ")
            tape.request(who, AGENT if who == CONDUCTOR else CONDUCTOR, verb)
        elif kind is Kind.RPC and text.startswith("answer "):
            tape.answer(who, "done")
        return 0


class _Heard:
    """Stands before something whose methods are called, and tells which."""

    def __init__(self, thing: object, tell: Callable[..., None]) -> None:
        self._thing = thing
        self._tell = tell

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._thing, verb)
        if not callable(found):
            return found

        def heard(*arguments: Any, **more: Any) -> Any:
            self._tell(verb, *arguments)
            return found(*arguments, **more)

        return heard


def heard_driver(driver: Driver, tape: Tape) -> Driver:
    """The same driver, its agent's calls on a tape."""
    return cast(Driver, _Heard(driver, lambda verb, *_: tape.arrow(AGENT, DRIVER, verb)))


def heard_host(host: FakeHost, tape: Tape) -> FakeHost:
    """The same host, what its driver does to it on a tape."""

    def tell(verb: str, *arguments: Any) -> None:
        said = {
            "run": lambda: " ".join(arguments[0]),
            "write_text": lambda: f"write {arguments[0]}",
        }
        tape.arrow(DRIVER, HOST, said.get(verb, lambda: _LOOK)())

    return cast(FakeHost, _Heard(host, tell))


class HeardDoor:
    """A WSGI filter before the API: who asks for what, and how it is answered.

    ``nova`` is the lifeline of requests with a service token, which Nova sends.
    """

    def __init__(self, application: Any, tape: Tape, *, nova: str = NOVA) -> None:
        self._application = application
        self._tape = tape
        self._nova = nova

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        caller = self._nova if "HTTP_X_SERVICE_ROLES" in environ else CLIENT
        query = f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else ""
        asked = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{query}"
        self._tape.request(caller, API, asked)

        def started(status: str, *more: Any) -> Any:
            self._tape.answer(API, status)
            return start_response(status, *more)

        return self._application(environ, started)


def shown(text: str) -> str:
    """The text without what is another one in each run."""
    path, _, query = text.partition("?")
    keys = "&".join(one.partition("=")[0] for one in query.split("&"))
    whole = f"{path}?{keys}" if query else path
    return _OWN_NAME.sub("{name}", _UUID.sub("{uuid}", whole))


def draw(arrows: Sequence[Arrow]) -> str:
    """The diagram: a lifeline for everybody who takes part, a line for each step."""
    first = arrows[0].source
    parts = {one.source for one in arrows} | {one.target for one in arrows}
    names = sorted(parts, key=lambda one: (one != first, PLACES.index(one)))
    at = {}
    for number, name in enumerate(names):
        at[name] = sum(len(one) + len(_GAP) for one in names[:number]) + len(name) // 2
    idle = "".join("|" if place in at.values() else " " for place in range(max(at.values()) + 1))
    width = len(_GAP.join(names)) + len(_GAP)
    lines = [_GAP.join(names), idle]
    for one in arrows:
        first_line, *rest = textwrap.wrap(one.text, _WIDE, subsequent_indent=_GAP)
        lines.append(f"{_drawn(idle, at, one):{width}}{first_line}")
        lines += [f"{idle:{width}}{more}" for more in rest]
    return "\n".join([*lines, idle])


def _drawn(idle: str, at: dict[str, int], one: Arrow) -> str:
    source, target = at[one.source], at[one.target]
    left, right = min(source, target), max(source, target)
    dashes = ("- " if one.back else "--") * len(idle)
    line = dashes[: right - left - 2]
    whole = f"{line}>" if target > source else f"<{line[::-1]}"
    return f"{idle[: left + 1]}{whole}{idle[right:]}"
