# SPDX-License-Identifier: Apache-2.0
"""What the services do not import, because it costs each process time and memory for nothing."""

import subprocess
import sys
from collections.abc import Set as AbstractSet
from typing import Final

import pytest

#: Name of a process → the module that it imports at its start.
PROCESSES: Final = {
    "cyborg-api": "cyborg.cmd.api",
    "the API of a WSGI server": "cyborg.wsgi.api",
    "cyborg-conductor": "cyborg.cmd.conductor",
    "cyborg-agent": "cyborg.cmd.agent",
}


def imported(*modules: str) -> AbstractSet[str]:
    """Return the modules that a new process has after it has imported these."""
    code = f"import sys, {', '.join(modules)}\n"
    code += "print(*(name for name, module in sys.modules.items() if module is not None))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert modules[0] in done.stdout.split()
    return set(done.stdout.split())


@pytest.mark.parametrize("process", PROCESSES)
def test_process_imports_nothing_that_it_does_not_use(process: str) -> None:
    present = imported(PROCESSES[process])
    # cyborg-dbsync runs the revisions with alembic. The SDK reads limits where quotas are used. No
    # part of the service runs on eventlet, but futurist imports it where it is installed.
    assert not {"alembic", "openstack", "eventlet"} & present
    # SQLAlchemy imports the dialect of the database with the engine. oslo.db imports that of MySQL.
    assert "sqlalchemy.dialects.postgresql" not in present


def test_agent_imports_no_database() -> None:
    assert "sqlalchemy" not in imported(PROCESSES["cyborg-agent"])


def test_agent_imports_the_privileged_process_when_an_action_needs_it() -> None:
    present = imported(PROCESSES["cyborg-agent"], "cyborg.cmd.privileged")
    assert not [module for module in present if module.partition(".")[0] == "oslo_privsep"]


@pytest.mark.parametrize("command", ["cyborg.cmd.audit", "cyborg.cmd.status"])
def test_commands_that_audit_import_no_metrics(command: str) -> None:
    """They use the use cases of conductors, and no listener reads what these measure."""
    assert "prometheus_client" not in imported(command)


def test_schemas_of_placement_are_read_without_a_parser_of_iris() -> None:
    present = imported("cyborg.tests.fixtures", "placement.schemas.allocation", "jsonschema")
    assert not {"lark", "rfc3987_syntax"} & present
