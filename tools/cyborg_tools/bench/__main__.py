# SPDX-License-Identifier: Apache-2.0
"""Run the benchmark; see ``tools/bench``."""

import json
import logging
import sys
from collections.abc import Sequence
from functools import partial

from cyborg import conf as configuration
from cyborg_tools import program
from cyborg_tools.bench import options
from cyborg_tools.bench.figures import tables
from cyborg_tools.bench.run import Run


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return 1 if a request costs more than allowed."""
    plan = options.parse(arguments)
    conf = configuration.prepare([], prog="bench", default_config_files=[])
    logging.disable(logging.WARNING)
    results = Run(plan, conf, partial(program.say, "bench")).measure()
    if plan.as_json:
        print(json.dumps(results.document(), indent=2))
    else:
        print(tables(results, in_process=plan.in_process))
    return 1 if results.exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
