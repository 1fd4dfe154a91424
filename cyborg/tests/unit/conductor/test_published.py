# SPDX-License-Identifier: Apache-2.0
"""The environment without a process notices a use case whose change no agent would learn of."""

from uuid import uuid4

import pytest

from cyborg.db.engine import Database
from cyborg.db.transaction import Transaction
from cyborg.model.caller import Caller
from cyborg.model.process import HostStatus
from cyborg.rpc.verbs import SetServiceStatus
from cyborg.tests.fixtures.host_reports import report_of
from cyborg.tests.fixtures.use_cases import UseCases

HOST = "compute"
CALLER = Caller("project", "user", "req-1", all_projects=True)


def test_change_without_a_new_generation_fails_the_test(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = UseCases(db)
    site.lease.renew()
    site.report(HOST, report_of(HOST, 1))
    disable = SetServiceStatus(
        CALLER, str(uuid4()), site.agent_row(HOST).uuid, HostStatus.DISABLED, None
    )
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "publish", lambda *_arguments: None)
        with pytest.raises(AssertionError, match="was forgotten"):
            site.ask(disable)
    enable = SetServiceStatus(
        CALLER, str(uuid4()), site.agent_row(HOST).uuid, HostStatus.ENABLED, None
    )
    site.ask(enable)
