# SPDX-License-Identifier: Apache-2.0
"""Run the unittest modules named as arguments; the last line of output is JSON: outcome by test."""

import json
import sys
import unittest
from typing import Any, cast

outcomes: dict[str, str] = {}


class Result(unittest.TextTestResult):
    """Notes what became of each test."""

    def addSuccess(self, test):
        super().addSuccess(test)
        outcomes.setdefault(test.id(), "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        outcomes[test.id()] = "skipped"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        outcomes[test.id()] = "failed"

    def addError(self, test, err):
        super().addError(test, err)
        outcomes[test.id()] = "failed"


names = sys.argv[1:]
runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=cast("Any", Result))
runner.run(unittest.defaultTestLoader.loadTestsFromNames(names))
sys.stdout.write(f"{json.dumps(outcomes)}\n")
