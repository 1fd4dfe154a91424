# SPDX-License-Identifier: Apache-2.0
"""Print each finished part of a run, and a table of all parts at the end."""

from collections.abc import Iterator, Mapping

from cyborg.tests.fixtures.processes import Options
from cyborg_tools.bench.show import aligned
from cyborg_tools.chaos.client_log import VERBS
from cyborg_tools.chaos.results import Part, Results
from cyborg_tools.quickstart.screen import Screen

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


def differing(screen: Screen, options: Options, more: Mapping[str, str]) -> None:
    """What the daemons are told; everything else is the default."""
    screen.say("All options of the daemons are the defaults, but for these:")
    rows = [
        f"  [{group}] {name} = {'(secret)' if name in _SECRETS else value}"
        for group, values in options.items()
        for name, value in values.items()
    ]
    screen.raw([*rows, *(f"  {name}: {text}" for name, text in more.items())])


def part(screen: Screen, one: Part) -> None:
    """What was done, what each client saw, and the verdict."""
    screen.heading(f"{one.name}: {one.title}")
    for sentence in one.facts:
        screen.fact("done", sentence)
    for name, seconds in one.figures.items():
        aim = f" (aim: {TAKEOVER_AIM:g} s)" if _is_takeover(one, name) else ""
        screen.fact("took", f"{name} after {seconds:.1f} s{aim}")
    if one.recovery is not None:
        screen.fact("recovery", f"{one.recovery:.1f} s after the fault was over")
    if one.chapter.seen:
        screen.raw(["", aligned(list(_seen(one))), ""])
    for sentence in one.violations:
        screen.problem(sentence)
    if not one.violations:
        screen.ok("no findings: 0 violations")


def summary(screen: Screen, results: Results) -> None:
    """All parts in one table, and the verdict on the whole."""
    screen.heading("Summary")
    screen.raw([aligned(list(_parts(results))), ""])
    screen.say(_LEGEND)
    for one in results.parts:
        for name, seconds in one.figures.items():
            if _is_takeover(one, name):
                missed = "" if seconds <= TAKEOVER_AIM else ", missed"
                screen.say(
                    f"From {one.name} in mid-bind until {name}: {seconds:.1f} s "
                    f"(aim: {TAKEOVER_AIM:g} s{missed})."
                )
    sentence = f"{results.violations} violations in {results.seconds:.0f} s, seed {results.seed}."
    if results.violations:
        screen.problem(sentence)
    else:
        screen.verdict(sentence)


def _is_takeover(one: Part, name: str) -> bool:
    return one.name == "conductor-kill" and name.startswith("ARQ resolved")


def _seen(one: Part) -> Iterator[list[str]]:
    yield ["client", "boots", *VERBS, "settled", "BindFailed"]
    for name, seen in sorted(one.chapter.seen.items()):
        answers = [seen.row(verb) for verb in VERBS]
        yield [name, str(seen.lifecycles), *answers, str(seen.settled), str(seen.failed)]


def _parts(results: Results) -> Iterator[list[str]]:
    yield ["fault", "recovery", "bind p50", "bind p99", "boots", "unanswered", "violations", "s"]
    for one in results.parts:
        seen = one.chapter.seen.values()
        unanswered = sum(
            count
            for each in seen
            for (_, status), count in each.answers.items()
            if status in ("503", "none")
        )
        yield [
            one.name,
            "-" if one.recovery is None else f"{one.recovery:.1f} s",
            "-" if one.bind_p50_ms is None else f"{one.bind_p50_ms:,.0f}",
            "-" if one.bind_p99_ms is None else f"{one.bind_p99_ms:,.0f}",
            str(sum(each.lifecycles for each in seen)),
            str(unanswered),
            str(len(one.violations)),
            f"{one.elapsed:.0f}",
        ]
