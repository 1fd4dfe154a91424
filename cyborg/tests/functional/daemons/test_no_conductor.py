# SPDX-License-Identifier: Apache-2.0
"""Writes while no conductor is up: the broker says so, and nothing is sent."""

import functools
import signal
from collections.abc import Callable

import pytest

from cyborg.rpc.transport import CONDUCTOR_TOPIC
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.processes import Deployment
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.daemons.service import FPGA, Http
from cyborg.tests.functional.deployments import TRANSPORT_URL


def listeners(queue: str) -> int:
    with broker.connection(TRANSPORT_URL) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).consumer_count)


def waiting_writes(queue: str) -> int:
    """How many messages wait on a queue that nobody reads, pings excepted; they are removed."""
    with broker.connection(TRANSPORT_URL) as connection:
        get = functools.partial(connection.channel().basic_get, queue, no_ack=True)
        return sum('"ping' not in str(message.body) for message in iter(get, None))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_first_write_without_conductor_is_refused_and_not_sent(
    deploy: Callable[..., Deployment], exchange: str, end: signal.Signals
):
    """The answer has the reason, however long the API waits for a conductor that is slow."""
    deployment = deploy({"DEFAULT": {"rpc_response_timeout": 60}})
    conductor = deployment.conductor()
    api, url = deployment.api()
    http = Http(url)
    eventually(lambda: http.write() == 201, lambda: api.output)
    conductor.signal(end)
    conductor.wait()
    queue = f"{exchange}.{CONDUCTOR_TOPIC}"
    eventually(lambda: listeners(queue) == 0, "the broker knows that the conductor is gone")
    for _ in range(2):
        answer = http.ask("POST", "/v2/device_profiles", [{"name": "x", "groups": [FPGA]}])
        assert answer.status_code == 503
        assert "no process listens on its queue" in answer.text
        assert waiting_writes(queue) == 0
    deployment.conductor()
    eventually(lambda: http.write() == 201, lambda: api.output)
