# SPDX-License-Identifier: Apache-2.0
"""What clients see and what became of each fault, as values that become text or JSON."""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cyborg.tests.fixtures.processes import Options
from cyborg_tools.bench.figures import Samples, aligned
from cyborg_tools.quickstart.screen import Screen

#: The status of a request without a response.
NOTHING = "none"
VERBS = ("create", "bind", "list", "delete")
#: Target of a takeover after a conductor was killed, with default options, in seconds.
TAKEOVER_AIM = 5.0
_SECRETS = {"token", "password", "transport_url"}
_LEGEND = (
    "recovery: after the fault's end, until a new server has booted with a device that needs "
    "preparation, and Nova was told. bind p50, p99: of the PATCHes of all clients, in "
    "milliseconds. Of each verb: how many were answered with success, and how many otherwise; "
    "'none' is no answer at all. settled: repeated after an answer that left the outcome open, "
    "and then answered for good."
)


@dataclass
class Seen:
    """Responses to one client by verb and status, and what became of its requests.

    ``ends`` counts ``boots`` (from scheduling to the end of the bind), ``failed`` binds, and
    ``settled`` requests: repeated ones whose outcome is now known.
    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def of(self, verb: str) -> dict[str, int]:
        """How often a verb was answered with which status."""
        return {
            status: count for (one, status), count in sorted(self.answers.items()) if one == verb
        }

    def row(self, verb: str) -> str:
        """The answers to one verb, in words: successes as their number, the others by status."""
        mine = self.of(verb)
        good = sum(count for status, count in mine.items() if status.startswith("2"))
        return ", ".join(
            [str(good), *(f"{status} x{mine[status]}" for status in mine if status[0] != "2")]
        )


@dataclass
class Chapter:
    """Results of all clients from the start of one fault until its verdict.

    ``binds`` are the times of PATCHes in seconds, those without an answer included.
    """

    seen: Mapping[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    binds: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class ClientLog:
    """The log of all clients; its methods can be called from any thread.

    ``page`` is the current chapter; ``left_behind`` says how many ARQs may have been made by
    requests of which no answer was seen.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[tuple[str, str], str] = {}
        self.page = Chapter()
        self.left_behind = 0

    def turn_page(self) -> None:
        with self._lock:
            self.page = Chapter()

    def answer(self, client: str, verb: str, status: str, seconds: float) -> None:
        """Record the status of a response; ``NOTHING`` if there was none."""
        with self._lock:
            self.page.seen[client].answers[verb, status] += 1
            if verb == "bind":
                self.page.binds.append(seconds)

    def count(self, client: str, end: str) -> None:
        """Count one of the ends of ``Seen``."""
        with self._lock:
            self.page.seen[client].ends[end] += 1

    def violation(self, sentence: str) -> None:
        with self._lock:
            self.page.violations.append(sentence)

    def may_be_left(self, count: int) -> None:
        """So many more ARQs may have been made by requests of which no answer was seen."""
        with self._lock:
            self.left_behind += count

    def hold(self, unit: tuple[str, str], instance: str) -> None:
        with self._lock:
            holder = self._holders.setdefault(unit, instance)
        if holder != instance:
            self.violation(f"unit {unit[1]} of {unit[0]} is held by {instance} and by {holder}")

    def let_go(self, instance: str) -> None:
        with self._lock:
            for unit in [unit for unit, holder in self._holders.items() if holder == instance]:
                del self._holders[unit]


@dataclass
class Part:
    """One fault, from its beginning to the verdict; times in seconds.

    ``recovery`` is how long after the fault's end a new server took to boot with a device that
    needs preparation, Nova told and all; None for the part without a fault.
    """

    name: str
    title: str
    chapter: Chapter
    facts: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    recovery: float | None = None
    elapsed: float = 0.0

    @property
    def bind_ms(self) -> tuple[float, float] | None:
        """The median time of a PATCH, and the one that one in a hundred exceeds."""
        samples = Samples(self.chapter.binds, self.elapsed)
        return (samples.p50_ms, samples.p99_ms) if self.chapter.binds else None

    def document(self) -> dict[str, Any]:
        return {
            "fault": self.name,
            "title": self.title,
            "facts": self.facts,
            "figures_s": {name: round(value, 2) for name, value in self.figures.items()},
            "recovery_s": None if self.recovery is None else round(self.recovery, 2),
            "elapsed_s": round(self.elapsed, 1),
            "bind_ms": dict(zip(("p50", "p99"), self.bind_ms or (None, None), strict=True)),
            "clients": {
                name: {
                    **{end: seen.ends[end] for end in ("boots", "failed", "settled")},
                    **{verb: seen.of(verb) for verb in VERBS},
                }
                for name, seen in sorted(self.chapter.seen.items())
            },
            "violations": self.chapter.violations,
        }

    def show(self, screen: Screen) -> None:
        """What was done, what each client saw, and the verdict."""
        screen.heading(f"{self.name}: {self.title}")
        for sentence in self.facts:
            screen.fact("done", sentence)
        for name, seconds in self.figures.items():
            aim = f" (aim: {TAKEOVER_AIM:g} s)" if self.is_takeover(name) else ""
            screen.fact("took", f"{name} after {seconds:.1f} s{aim}")
        if self.recovery is not None:
            screen.fact("recovery", f"{self.recovery:.1f} s after the fault was over")
        if self.chapter.seen:
            rows = [["client", "boots", *VERBS, "settled", "BindFailed"]]
            for name, seen in sorted(self.chapter.seen.items()):
                boots, *ends = (str(seen.ends[end]) for end in ("boots", "settled", "failed"))
                rows.append([name, boots, *map(seen.row, VERBS), *ends])
            screen.raw(["", aligned(rows), ""])
        for sentence in self.chapter.violations:
            screen.problem(sentence)
        if not self.chapter.violations:
            screen.ok("no findings: 0 violations")

    def is_takeover(self, figure: str) -> bool:
        return self.name == "conductor-kill" and figure.startswith("ARQ resolved")


@dataclass
class Results:
    """The whole run."""

    seed: str
    parts: list[Part] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def violations(self) -> int:
        return sum(len(one.chapter.violations) for one in self.parts)

    def document(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "violations": self.violations,
            "parts": [one.document() for one in self.parts],
        }

    def show(self, screen: Screen) -> None:
        """All parts in one table, and the verdict on the whole."""
        screen.heading("Summary")
        rows = [["fault", "recovery", "bind p50", "bind p99", "boots", "unanswered"]]
        rows[0] += ["violations", "s"]
        for one in self.parts:
            seen = one.chapter.seen.values()
            answers = [answer for each in seen for answer in each.answers.items()]
            unanswered = sum(count for (_, status), count in answers if status in ("503", NOTHING))
            rows.append(
                [
                    one.name,
                    "-" if one.recovery is None else f"{one.recovery:.1f} s",
                    *(f"{ms:,.0f}" for ms in one.bind_ms or ()),
                    *(["-", "-"] if one.bind_ms is None else []),
                    str(sum(each.ends["boots"] for each in seen)),
                    str(unanswered),
                    str(len(one.chapter.violations)),
                    f"{one.elapsed:.0f}",
                ]
            )
        screen.raw([aligned(rows), ""])
        screen.say(_LEGEND)
        for one in self.parts:
            for name, seconds in one.figures.items():
                if one.is_takeover(name):
                    missed = "" if seconds <= TAKEOVER_AIM else ", missed"
                    screen.say(
                        f"From {one.name} in mid-bind until {name}: {seconds:.1f} s "
                        f"(aim: {TAKEOVER_AIM:g} s{missed})."
                    )
        sentence = f"{self.violations} violations in {self.seconds:.0f} s, seed {self.seed}."
        (screen.problem if self.violations else screen.verdict)(sentence)


def show_options(screen: Screen, options: Options, own: Mapping[str, Options]) -> None:
    """What all daemons are told, and what only one is; everything else is the default."""
    screen.say("All options of the daemons are the defaults, but for these:")
    for daemon, groups in {"all": options, **own}.items():
        for group, values in groups.items():
            for name, value in values.items():
                shown = "(secret)" if name in _SECRETS else value
                screen.raw([f"  {daemon}: [{group}] {name} = {shown}"])
