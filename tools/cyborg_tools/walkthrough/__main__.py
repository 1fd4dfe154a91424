# SPDX-License-Identifier: Apache-2.0
"""Run the walkthrough; see ``tools/walkthrough``."""

import logging
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from cyborg import exception
from cyborg.tests.fixtures.accelerators import Exchange
from cyborg.tests.fixtures.loopback import bypass_proxies
from cyborg_tools.quickstart.clients import StepFailed
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.walkthrough import options, walk
from cyborg_tools.walkthrough.environment import Environment, Place
from cyborg_tools.walkthrough.operator import Operator
from cyborg_tools.walkthrough.scenario import Scenario

#: Timeout of the whole walkthrough, in seconds.
_LONGEST = 600
#: Lines of each daemon's log that are shown after a failed step.
_TAIL = 12


def main(arguments: Sequence[str]) -> int:
    """Run the walkthrough; return 1 if a step fails or nothing could be started."""
    plan = options.parse(arguments)
    # Placement's own log, within this process.
    logging.disable(logging.WARNING)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    bypass_proxies()
    place = Place.make()
    try:
        return _carry_out(plan, place, Screen(sys.stdout))
    except exception.CyborgError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted; everything that was started is stopped")
        return 130
    finally:
        if plan.keep:
            _say(f"logs and configuration are in {place.directory}")
        else:
            shutil.rmtree(place.directory, ignore_errors=True)


def _carry_out(plan: options.Plan, place: Place, screen: Screen) -> int:
    began = time.monotonic()
    screen.heading("Starting three daemons, one of them on two hosts")
    with Environment(plan, place) as environment:
        try:
            for name, program in environment.daemons.items():
                screen.fact(f"pid {program.pid}", name)
            held = _walk(environment, screen)
        finally:
            _ignore()
    if held:
        screen.fact("took", f"{time.monotonic() - began:.0f} s")
        screen.verdict("Every step held.")
    return 0 if held else 1


def _walk(environment: Environment, screen: Screen) -> bool:
    """Run every step; return whether all succeeded."""
    account = {"OS_AUTH_TYPE": "none", "OS_ENDPOINT": environment.url}
    screen.heading("The walkthrough: tasks of operators with the cyborg command")
    screen.raw([f"  export {name}={value}" for name, value in account.items()])
    environment.listen(lambda one: screen.exchange("Nova", _brief(one)))
    operator = Operator({**environment.deployment.environment, **account}, screen)
    scenario = Scenario(environment, operator, screen)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_LONGEST)
    try:
        walk.play(scenario)
    except StepFailed as failure:
        screen.problem(f"{failure}.")
        screen.say("The last command was:")
        operator.show_last()
        for name, program in environment.daemons.items():
            screen.raw([f"\n  {name}, the end of its log:", *program.output.splitlines()[-_TAIL:]])
        return False
    finally:
        signal.alarm(0)
    return True


def _brief(one: Exchange) -> Exchange:
    """Return an exchange of Nova without its bodies; tools/quickstart shows them."""
    return replace(one, path=f"/v2{one.path}", body=None, answer=None)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Stop in order and once; a second signal does not interrupt it."""
    _ignore()
    raise KeyboardInterrupt


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise StepFailed(f"The walkthrough has not ended after {_LONGEST} seconds")


def _say(sentence: str) -> None:
    print(f"{options.PROG}: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
