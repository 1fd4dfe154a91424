# SPDX-License-Identifier: Apache-2.0
"""Start the service, show the devices of this machine, walk through, and keep serving."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from types import TracebackType

from cyborg import conf as configuration
from cyborg import exception
from cyborg.tests.fixtures.loopback import bypass_proxies
from cyborg_tools.quickstart import cloud, lines, machine, options
from cyborg_tools.quickstart.clients import Scenario, StepFailed
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.quickstart.state import State, shown
from cyborg_tools.quickstart.walk import Walk

_CUT_OFF = 130


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    asked = options.parse(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        return _run(asked, Screen(sys.stdout, brief=asked.brief))
    except exception.CyborgError as error:
        print(f"{options.PROG}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Standard output is closed; keep the interpreter from failing on it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"{options.PROG}: interrupted.", file=sys.stderr)
        return _CUT_OFF


def _run(asked: options.Options, screen: Screen) -> int:
    proxied = bypass_proxies()
    state = State(asked.state)
    with state.taken():
        if asked.clean:
            screen.say(f"Removed {state.clean()} file(s) of earlier runs.")
        files = [str(state.write_conf(asked.port, asked.whitelist))]
        conf = configuration.prepare([], prog=options.PROG, default_config_files=files)
        _report_faults(state)
        with cloud.opened(conf, state, screen, asked.whitelist) as running:
            _introduce(running, screen)
            scenario = _scenario(running)
            held = _walk(scenario, state, screen)
            if held and not asked.demo:
                _serve(scenario, screen, proxied)
    return 0 if held else 1


def _interrupt(number: int, frame: object) -> None:
    """Stop in order and once; a second Ctrl-C does not interrupt it."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _report_faults(state: State) -> None:
    """Print an unexpected error, which is already in the log."""
    logged = sys.excepthook

    def report(
        kind: type[BaseException], fault: BaseException, trace: TracebackType | None
    ) -> None:
        logged(kind, fault, trace)
        told = f"{kind.__name__}: {fault}"
        print(f"{options.PROG}: unexpected error: {told}; see {state.log}.", file=sys.stderr)

    sys.excepthook = report


def _introduce(running: cloud.RunningService, screen: Screen) -> None:
    screen.heading("What this machine has")
    if screen.brief:
        screen.say(machine.summary(running.findings))
    else:
        screen.raw(machine.table(running.findings, screen.width))
        screen.raw([""])
    for note in machine.notes(running.findings):
        screen.say(note)
    kind = "the first function that is offered" if running.findings.own else "the fake accelerator"
    screen.say(f"The walk asks for {kind}, {running.findings.deployable.name}.")


def _scenario(running: cloud.RunningService) -> Scenario:
    return Scenario(
        url=running.url,
        placement_url=running.placement_url,
        nova=running.nova,
        host=running.host,
        deployable=running.findings.deployable,
        units=partial(cloud.units, running.reader),
    )


def _walk(scenario: Scenario, state: State, screen: Screen) -> bool:
    """Run the walk; return whether every step succeeded."""
    screen.heading("The walk: an accelerator in the life of a server, with Nova's part played")
    try:
        Walk(scenario, screen).play()
    except StepFailed as failure:
        screen.problem(f"{failure}. The log is {shown(state.log)}.")
        return False
    screen.verdict("Every step held.")
    return True


def _serve(scenario: Scenario, screen: Screen, proxied: bool) -> None:
    """Serve until a signal."""
    try:
        screen.heading("Go on by yourself, in another terminal")
        screen.raw(list(lines.to_copy(scenario, proxied)))
        screen.say()
        screen.say("Serving until Ctrl-C.")
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.say("Ending.")
