# SPDX-License-Identifier: Apache-2.0
"""Run ``openstack`` commands one after the other: their imports take longer than all of them.

Reads one JSON list of arguments per line, answers one JSON list (status, output, error output) per
line. An argument names a module whose entry points are to be overlooked.
"""

import contextlib
import importlib
import importlib.metadata
import io
import json
import sys
from typing import Any


def overlook(prefix):
    """Hide the entry points that lead below a module."""
    metadata: Any = importlib.metadata
    everything = metadata.distributions

    class Seen:
        """A distribution without some of its entry points."""

        def __init__(self, distribution):
            self._distribution = distribution

        def __getattr__(self, name):
            return getattr(self._distribution, name)

        @property
        def entry_points(self):
            found = self._distribution.entry_points
            kept = (one for one in found if not one.value.startswith(prefix))
            return importlib.metadata.EntryPoints(kept)

    metadata.distributions = lambda **query: map(Seen, everything(**query))


def main():
    """Answer until there is no more input."""
    if sys.argv[1:]:
        overlook(sys.argv[1])
    shell: Any = importlib.import_module("openstackclient.shell")

    if sys.argv[1:] == ["openstackclient.accelerator"]:
        # The releases that had no commands of their own took those of the plug-in.
        shell.IGNORED_MODULES = ()
    answers = sys.stdout
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = shell.main(json.loads(line))
            except SystemExit as ended:
                status = ended.code
        answers.write(json.dumps([status, out.getvalue(), err.getvalue()]) + "\n")
        answers.flush()


main()
