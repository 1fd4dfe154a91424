# SPDX-License-Identifier: Apache-2.0
"""Start the service, show the devices of this machine, walk through, and keep serving."""

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType

from cyborg import conf as configuration
from cyborg.drivers import archive
from cyborg.drivers.host import Host, LocalHost
from cyborg.drivers.loader import NAMESPACE
from cyborg.testing import scenario_hosts
from cyborg.tests.fixtures.loopback import bypass_proxies
from cyborg_tools import program
from cyborg_tools.quickstart import cloud, dashboard, lines, machine, options
from cyborg_tools.quickstart.clients import Scenario, StepFailed
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.quickstart.state import NO_KEYSTONE, State, shown
from cyborg_tools.quickstart.walk import Walk


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    asked = options.parse(argv)
    try:
        return program.run(options.PROG, lambda: _run(asked, Screen(sys.stdout, brief=asked.brief)))
    except BrokenPipeError:
        # Standard output is closed; keep the interpreter from failing on it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(asked: argparse.Namespace, screen: Screen) -> int:
    proxied = bypass_proxies()
    # Databases, logs and image files are private, whichever part of the process creates them.
    os.umask(0o077)
    state = State(asked.state)
    with state.taken(), ExitStack() as endings:
        if asked.clean:
            screen.say(f"Removed {state.clean()} file(s) of earlier runs.")
        screen.heading("Starting everything in one process, on the loopback interface only")
        identity = None
        if asked.dashboard:
            identity = endings.enter_context(dashboard.identified(state, screen))
        known = None if asked.host not in options.SCENARIOS else scenario_hosts.read(asked.host)
        drivers = [] if known is None else scenario_hosts.together(known, _installed())
        authentication = NO_KEYSTONE if identity is None else identity.authentication
        file = state.write_conf(asked.port, asked.whitelist, drivers, authentication)
        files = [str(file)]
        conf = configuration.prepare([], prog=options.PROG, default_config_files=files)
        _report_faults(state)
        if known is not None:
            host: Host = scenario_hosts.build(known)
        else:
            host = LocalHost() if asked.host is None else archive.read(Path(asked.host))
        opening = cloud.opened(
            conf, state, screen, asked.whitelist, machine=host, identity=identity
        )
        with opening as (scenario, findings):
            screen.heading("What this machine has" if asked.host is None else "What the host has")
            if known is not None:
                screen.say(f"{asked.host}, simulated: {known.description}.")
            machine.show(screen, findings)
            held = _walk(scenario, state, screen)
            if held and not asked.demo:
                if identity is None:
                    _serve([lines.to_copy(scenario, proxied)], screen)
                else:
                    address = endings.enter_context(dashboard.shown(state, identity, screen))
                    url, account = identity.keystone.url, identity.accounts[dashboard.ADMIN]
                    text = lines.for_account(scenario, url, account, proxied=proxied)
                    _serve([*dashboard.invitation(address, identity), "", text], screen)
    return 0 if held else 1


def _installed() -> set[str]:
    return set(entry_points(group=NAMESPACE).names)


def _report_faults(state: State) -> None:
    """Print an unexpected error, which is already in the log."""
    logged = sys.excepthook

    def report(
        kind: type[BaseException], fault: BaseException, trace: TracebackType | None
    ) -> None:
        logged(kind, fault, trace)
        told = f"{kind.__name__}: {fault}"
        program.say(options.PROG, f"unexpected error: {told}; see {state.log}.")

    sys.excepthook = report


def _walk(scenario: Scenario, state: State, screen: Screen) -> bool:
    screen.heading("The walk: an accelerator in the life of a server, with Nova's part played")
    try:
        Walk(scenario, screen).play()
    except StepFailed as failure:
        screen.problem(f"{failure}. The log is {shown(state.log)}.")
        return False
    screen.verdict("Every step held.")
    return True


def _serve(texts: Sequence[str], screen: Screen) -> None:
    try:
        screen.heading("Go on by yourself, in another terminal")
        screen.raw(texts)
        screen.say("Serving until Ctrl-C.")
        threading.Event().wait()
    except KeyboardInterrupt:
        screen.say("Ending.")
