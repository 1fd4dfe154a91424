# SPDX-License-Identifier: Apache-2.0
"""The rules that Horizon checks are those of the service."""

from cyborg.tests.committed import REWRITE
from cyborg_tools.dashboard import policies


def test_rules_of_horizon_are_the_defaults_of_the_service() -> None:
    rendered = policies.rendered()
    if REWRITE:
        policies.FILE.write_text(rendered)
    assert policies.FILE.read_text() == rendered
