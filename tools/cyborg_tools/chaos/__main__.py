# SPDX-License-Identifier: Apache-2.0
"""Run the chaos tests; see ``tools/chaos``."""

import json
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from cyborg import exception
from cyborg_tools.chaos import options, show
from cyborg_tools.chaos.night import Night
from cyborg_tools.chaos.night_world import NightWorld
from cyborg_tools.chaos.results import Results
from cyborg_tools.chaos.run import Run
from cyborg_tools.chaos.world import World
from cyborg_tools.quickstart.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Run the plan and print; return 1 for a violation or if something could not be started."""
    plan = options.parse(arguments)
    logging.disable(logging.WARNING)
    # SIGINT as well: a shell starts background processes with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    # With --json, standard output is for the document alone.
    screen = Screen(sys.stderr if plan.as_json else sys.stdout)
    directory = Path(tempfile.mkdtemp(prefix="cyborg-chaos-"))
    try:
        results = _carry_out(plan, directory, screen)
    except exception.CyborgError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("chaos: interrupted; everything that was started is stopped", file=sys.stderr)
        return 130
    finally:
        if plan.keep:
            print(f"chaos: logs, configuration and data are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if plan.as_json:
        print(json.dumps(results.document(), indent=2))
    return 1 if results.violations else 0


def _carry_out(plan: options.Plan, directory: Path, screen: Screen) -> Results:
    _say("starting MariaDB, RabbitMQ, Placement and the daemons")
    with NightWorld(directory) if plan.night else World(directory) as world:
        try:
            show.differing(screen, world.options, world.differing)
            if isinstance(world, NightWorld):
                walk = Night(plan, say=_say, tell=lambda part: show.part(screen, part))
                results = walk.carry_out(world)
            else:
                run = Run(plan, say=_say, tell=lambda part: show.part(screen, part))
                results = run.carry_out(world)
        finally:
            # Nothing may interrupt the stopping.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            _say("stopping everything")
    show.summary(screen, results)
    return results


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(sentence: str) -> None:
    """Progress goes to standard error, so that the results can be piped."""
    print(f"chaos: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
