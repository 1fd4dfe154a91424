# SPDX-License-Identifier: Apache-2.0
"""A broker that answers nothing does not hold a process that ends."""

import pytest
from oslo_config import cfg

from cyborg.conf import opts
from cyborg.rpc.transport import Bus
from cyborg.tests.fixtures.waiting import Gate


def test_bus_closes_although_its_connections_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    conf, gate = cfg.ConfigOpts(), Gate()
    opts.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    bus = Bus(conf, url="fake://")
    # As when a thread that connects holds a lock of oslo.messaging.
    monkeypatch.setattr(bus._transport, "cleanup", gate.hold)
    bus.close()
    gate.reached()
    gate.set()
