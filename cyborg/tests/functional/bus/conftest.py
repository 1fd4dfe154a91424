# SPDX-License-Identifier: Apache-2.0
"""A service whose messages must be signed, and an attacker on its bus."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg

from cyborg.db.engine import Database
from cyborg.rpc import keys
from cyborg.rpc.keys import CONTROLLER, HOST, MASTER, KeyRing, Keys
from cyborg.rpc.signing import Mode, Refused, Request, Signer
from cyborg.rpc.transport import Bus
from cyborg.tests.fixtures.stack import Stack, fresh_exchange
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.deployments import HAS_BROKER
from cyborg.tests.functional.schema.databases import SERVER

# Accounts and their permissions are those of a broker.
collect_ignore = [] if HAS_BROKER else ["test_permissions.py", "test_precedence.py"]
# The faults are those of MariaDB, and consumers of a broker have precedence.
if not (HAS_BROKER and SERVER.startswith("mysql")):
    collect_ignore.append("test_cut_off.py")

#: What a receiver's refusal is for the sender, within one process and over a broker.
REFUSALS = (Refused, oslo_messaging.RemoteError)


@dataclass
class Attacker:
    """Sends anything to the bus, with the keys of a file or with none."""

    bus: Bus
    exchange: str
    file: Path | None = None

    def signed(
        self,
        topic: str,
        verb: str,
        arguments: dict[str, Any],
        *,
        sender: str,
        owner: str = CONTROLLER,
        server: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> dict[str, Any]:
        """Return the context of a request, signed with the key of an owner if there is a file."""
        context: dict[str, Any] = {"request_id": "req-attack", "sender": sender}
        if self.file is None:
            return context
        address = ".".join(filter(None, (self.exchange, topic, server)))
        signer = Signer(Mode.OFF, KeyRing(self.file, failed=print), now=now)
        signed, proof = signer.sign(owner, Request(address, verb, "1.0", arguments, context))
        assert proof is not None, "the file has no key of this owner"
        return signed

    def deliver(
        self,
        topic: str,
        verb: str,
        arguments: dict[str, Any],
        context: dict[str, Any],
        *,
        server: str | None = None,
    ) -> Any:
        """Send a request as it is, and return the reply."""
        client = oslo_messaging.get_rpc_client(
            self.bus._transport,
            oslo_messaging.Target(exchange=self.exchange, topic=f"{self.exchange}.{topic}"),
            retry=1,
        )
        options = {"server": server} if server else {}
        return client.prepare(timeout=PATIENCE, version="1.0", **options).call(
            context, verb, **arguments
        )


@pytest.fixture
def master() -> Keys:
    """The master keys of the controllers."""
    return Keys(MASTER, CONTROLLER, (keys.generate(),))


@pytest.fixture
def master_file(master: Keys, tmp_path: Path) -> Path:
    path = tmp_path / "master.json"
    keys.write(path, master)
    return path


@pytest.fixture
def of_host(master: Keys, tmp_path: Path) -> Callable[[str], Path]:
    """Write the file of a host."""

    def make(host: str) -> Path:
        path = tmp_path / f"{host}.json"
        keys.write(path, master.derived(HOST, host))
        return path

    return make


@pytest.fixture
def signing(conf: cfg.ConfigOpts, master_file: Path) -> Iterator[None]:
    """Processes that start now need signatures."""
    with ExitStack() as ending:
        for name, value in (
            ("message_signing", "required"),
            ("message_signing_key_file", str(master_file)),
        ):
            conf.set_override(name, value)
            ending.callback(conf.clear_override, name)
        yield


@pytest.fixture
def secured(signing: None, own_database: Database, beside: Callable[..., Stack]) -> Stack:
    """The service with one conductor, on a bus and a database of its own."""
    own = beside(own_database, exchange=fresh_exchange())
    own.start_conductor()
    own.conductor_client()
    return own


@pytest.fixture
def attacker(secured: Stack) -> Callable[..., Attacker]:
    """Make an attacker on the bus of the service."""
    return lambda file=None: Attacker(secured.bus(), secured.exchange, file)
