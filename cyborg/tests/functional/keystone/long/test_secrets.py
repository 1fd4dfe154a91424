# SPDX-License-Identifier: Apache-2.0
"""No secret of the configuration, and no token, is in the logs that the daemons write at DEBUG."""

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

import cyborg
from cyborg.cmd.audit import PROG as AUDIT
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.broker import Tenant
from cyborg.tests.fixtures.keystone import KeystoneService
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional import deployments
from cyborg.tests.functional.daemons.service import (
    Http,
    go_through_everything,
    start_service,
)
from cyborg.tests.functional.deployments import merged
from cyborg.tests.functional.schema.databases import upgraded_database

SAMPLE = Path(cyborg.__file__).parents[1] / "tools" / "config" / "cyborg-config-generator.conf"
#: Fernet tokens of Keystone.
TOKEN = re.compile(r"gAAAA[\w-]{16}")
#: Groups that need an account of Keystone to work.
ACCOUNTS = ("keystone_authtoken", "nova", "glance", "service_user")


def secret(place: str) -> str:
    """A word that nothing else holds, and that says where it was."""
    return f"leaked-{place}-{uuid4().hex}"


def secret_options() -> dict[str, dict[str, object]]:
    """A word for each option of the sample file that is declared to be secret."""
    namespaces = re.findall(r"^namespace = (\S+)$", SAMPLE.read_text(), re.MULTILINE)
    assert "oslo.messaging" in namespaces
    chosen: dict[str, dict[str, object]] = {}
    points = importlib.metadata.entry_points(group="oslo.config.opts")
    for namespace in namespaces:
        (point,) = points.select(name=namespace)
        for group, options in point.load()():
            name = getattr(group, "name", group) or "DEFAULT"
            for option in options:
                if option.secret:
                    word = secret(f"{name}-{option.dest}")
                    is_url = option.dest.endswith(("connection", "url"))
                    value = f"rabbit://user:{word}@127.0.0.1:9/" if is_url else word
                    chosen.setdefault(name, {})[option.dest] = value
    return chosen


@contextmanager
def with_password(engine: sa.Engine) -> Iterator[str]:
    """The URL of a database with an account that has a password; SQLite has no accounts."""
    url, word = engine.url, secret("database")
    if engine.dialect.name == "sqlite":
        yield url.render_as_string(hide_password=False)
        return
    user = f"leak{uuid4().hex[:8]}"
    if engine.dialect.name == "postgresql":
        # The server trusts its own machine and looks at no password.
        user = str(url.username)
        statements: tuple[str, ...] = ()
    else:
        statements = (
            f"CREATE USER '{user}'@'%' IDENTIFIED BY '{word}'",
            f"GRANT ALL ON `{url.database}`.* TO '{user}'@'%'",
        )
    with engine.begin() as tx:
        for statement in statements:
            tx.exec_driver_sql(statement.replace("%", "%%"))
    yield url.set(username=user, password=word).render_as_string(hide_password=False)
    if statements:
        with engine.begin() as tx:
            tx.exec_driver_sql(f"DROP USER '{user}'@'%%'")


def words(options: Options) -> set[str]:
    """All secret words that stand in a configuration."""
    text = "\n".join(str(value) for values in options.values() for value in values.values())
    return set(re.findall(r"leaked-[\w-]+|[\w-]+-secret\b", text))


@pytest.fixture
def setting(
    keystone: KeystoneService,
    placement: PlacementService,
    nova_api: SimulatedNova,
    tmp_path: Path,
) -> Iterator[tuple[dict[str, dict[str, object]], str]]:
    """A configuration with a word in each secret option, and the name of its host."""
    host = fresh_host()
    placement.make_compute(host)
    with ExitStack() as running:
        tenant = running.enter_context(Tenant(deployments.TRANSPORT_URL))
        tenant.password, transport = secret("bus"), tenant.url
        transport = transport.replace(transport.split(":")[2].partition("@")[0], tenant.password)
        tenant.add_user(tenant.password)
        tenant.add_vhost()
        tenant.permit()
        database = running.enter_context(upgraded_database(tmp_path))
        url = running.enter_context(with_password(database.engine))
        exchange = running.enter_context(broker.exchange(transport, host))
        common = deployments.options(
            tmp_path,
            database=url,
            exchange=exchange,
            host=host,
            placement=placement,
            nova=nova_api.url,
            transport=transport,
        )
        account = keystone.make_account(f"user-{uuid4().hex}", "service", "service").options(
            keystone.url
        )
        accounts: Options = dict.fromkeys(ACCOUNTS, account)
        working: Options = {
            "DEFAULT": {"debug": "true", "default_log_levels": ""},
            "api": {"auth_strategy": "keystone"},
            "nova": {"endpoint_override": nova_api.url},
            # Its account is the part before the colon.
            "placement": {"token": f"admin:{secret('placement')}"},
            # The notifications go to the bus of the daemons.
            "oslo_messaging_notifications": {"driver": "messagingv2", "transport_url": transport},
        }
        yield merged(secret_options(), common, accounts, working), host


def test_debug_logs_of_a_boot_have_no_secret_and_no_token(
    setting: tuple[dict[str, dict[str, object]], str], keystone: KeystoneService, tmp_path: Path
):
    options, host = setting
    admin = keystone.token(keystone.make_account("admin", "admin", "admin"))
    nova = keystone.token(keystone.make_account("nova", "service", "service"))
    directory = tmp_path / "daemons"
    directory.mkdir()
    with Deployment(directory, options) as deployment:
        tokens = {"X-Auth-Token": admin, "X-Service-Token": nova}
        running = start_service(deployment, host, headers=tokens)
        go_through_everything(running.client(), host, running.provider)
        unknown = secret("token")
        refused = Http(running.url, headers={"X-Auth-Token": unknown})
        assert refused.ask("GET", "/v2/devices").status_code == 401
        for name, arguments in (("cyborg-status", ["check"]), (AUDIT, [])):
            ended = deployment.run(name, *arguments)
            (directory / f"{name}.out").write_text(ended.stdout + ended.stderr)
    logs = {path.name: path.read_text() for path in directory.glob("*.out")}
    assert len(logs) == 5
    for name in ("cyborg-api", "cyborg-conductor", "cyborg-agent"):
        (text,) = [text for log, text in logs.items() if re.fullmatch(rf"{name}-\d\.out", log)]
        assert len(re.findall(" DEBUG ", text)) > 100, name
    known = words(options) | {unknown}
    assert len(known) >= 10
    leaks = [(name, word) for name, text in logs.items() for word in known if word in text]
    leaks += [(name, found) for name, text in logs.items() for found in TOKEN.findall(text)]
    assert leaks == []
