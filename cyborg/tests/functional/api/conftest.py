# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the tests of the API, on the database of the functional tests."""

import pytest

from cyborg.db.engine import Database
from cyborg.tests.unit.api.conftest import (
    client,
    conductor,
    default_app,
    facts,
    make_client,
    make_conf,
    process,
    reader,
    statements,
    tokens,
    with_rules,
)

__all__ = [
    "client",
    "conductor",
    "default_app",
    "facts",
    "make_client",
    "make_conf",
    "process",
    "reader",
    "statements",
    "tokens",
    "with_rules",
]

pytest.register_assert_rewrite(
    "cyborg.tests.unit.api.test_arqs",
    "cyborg.tests.unit.api.test_binding",
    "cyborg.tests.unit.api.test_device_profiles",
    "cyborg.tests.unit.api.test_hardware",
    "cyborg.tests.unit.api.test_lists",
    "cyborg.tests.unit.api.test_reasons",
)


@pytest.fixture
def db(database: Database, clean: None) -> Database:
    """The database, with nothing of other tests in it."""
    return database
