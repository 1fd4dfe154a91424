# SPDX-License-Identifier: Apache-2.0
"""How the daemons start and end: checks 115, 117 and 120 to 122 of a drop-in replacement.

Configuration, logs, signals, names, and what load balancers ask.
"""

import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

import cyborg
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg.tests.fixtures.service_manager import SimulatedManager
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional import deployments, programs
from cyborg.tests.functional.deployed import shapes

DAEMONS = (API, CONDUCTOR, AGENT)
NOTHING = "sqlite:////nonexistent/cyborg.sqlite"
#: Options of the existing service, and of deployment tools, that mean nothing any more.
OBSOLETE: Options = {
    "DEFAULT": {"auth_strategy": "keystone", "rabbit_quorum_queues": "true"},
    "api": {"ramdisk_heartbeat_timeout": 300},
    "agent": {"resource_provider_startup_retries": 4},
    "conductor": {"automated_clean": "true"},
    "keystone": {"region_name": "RegionOne"},
    "nova": {"endpoint_type": "internal"},
    "service_catalog": {"auth_url": "http://keystone/"},
    "nobody": {"knows": "this"},
}


@dataclass(frozen=True)
class Run:
    """What was seen of a program that was started with a directory alone, reloaded and ended."""

    command_line: list[str]
    log: str
    output: str
    status: int
    manager: SimulatedManager


@pytest.fixture(scope="module")
def runs(
    options: Options, alone: Options, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Run]]:
    """All three programs, with a good many options that nobody knows any more."""
    directory = tmp_path_factory.mktemp("runs")
    logs, snippets = directory / "log", directory / "cyborg.conf.d"
    for one in (logs, snippets):
        one.mkdir()
    where = {"DEFAULT": {"log_dir": logs, "use_stderr": "true"}}
    with (
        ExitStack() as managers,
        Deployment(directory, deployments.merged(options, alone, OBSOLETE)) as deployment,
    ):
        deployment.conf.rename(snippets / "50-cyborg.conf")
        deployment.write("cyborg.conf.d/60-log", where)
        started: dict[str, tuple[Program, SimulatedManager]] = {}
        for name in DAEMONS:
            manager = managers.enter_context(SimulatedManager(watchdog=0.9))
            words = ("--config-dir", str(snippets))
            started[name] = deployment.start(name, *words, **manager.environment), manager
        for name, (program, manager) in started.items():
            program.wait_for(f"{name} is running")
            assert manager.hears("READY=1"), program.output
            assert manager.hears("WATCHDOG=1", times=3), program.output
            assert " DEBUG " not in program.output
            deployment.write(
                "cyborg.conf.d/60-log", {"DEFAULT": {**where["DEFAULT"], "debug": True}}
            )
            program.signal(signal.SIGHUP)
            program.wait_for("Read the configuration files again; debug is on")
            deployment.write("cyborg.conf.d/60-log", where)
            program.signal(signal.SIGHUP)
            program.wait_for("Read the configuration files again; debug is off")
            if name == AGENT:
                program.wait_for("have read their files again")
            assert manager.hears("WATCHDOG=1", times=manager.signs + 2), program.output
        yield {
            name: Run(
                command_line=Path(f"/proc/{program.pid}/cmdline").read_text().split("\0"),
                log=(logs / f"{name}.log").read_text(),
                status=program.stop(),
                output=program.output,
                manager=manager,
            )
            for name, (program, manager) in started.items()
        }


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_starts_with_config_dir_only_survives_sighup_and_exits_with_0(
    runs: dict[str, Run], name: str
):
    seen = runs[name]
    assert seen.status == 0  # and not -1, killed by SIGHUP
    assert f"{name} is running" in seen.log
    # The process table shows its name.
    assert any(word.endswith(f"/{name}") for word in seen.command_line)
    # Unknown options and sections are ignored.
    assert "nobody" not in seen.output
    # One line, at the start; it is the default.
    assert seen.log.count("[DEFAULT] message_signing is off: ") == 1
    # Nothing but lines of the log, and in them nothing that an operator cannot change.
    for line in seen.output.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d [\d:.]+ \d+ (INFO|WARNING) ", line), line
        assert not re.search(r"DeprecationWarning|[Ee]ventlet", line), line


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_notifies_ready_watchdog_and_stopping(runs: dict[str, Run], name: str):
    manager = runs[name].manager
    assert manager.hears("STATUS=Finishing")
    assert manager.told[0].startswith("STATUS=Running")
    assert manager.told[-2:] == ["STOPPING=1", "STATUS=Finishing the current work"]


def test_agent_without_broker_is_ready_and_states_its_reason(
    deploy: Callable[..., Deployment], alone: Options
):
    nowhere = {"DEFAULT": {"transport_url": "rabbit://guest:guest@127.0.0.1:1/"}}
    with SimulatedManager(watchdog=0.9) as manager:
        program = deploy(alone, nowhere).begin(AGENT, **manager.environment)
        assert manager.hears("READY=1"), program.output
        status, ready = manager.told[:2]
        assert status.startswith("STATUS=Receives no requests: the message bus at 127.0.0.1:1 can")
        assert ready == "READY=1"
        assert manager.hears("WATCHDOG=1", times=2)
        assert program.stop() == 0


def complaint(deployment: Deployment, name: str) -> str:
    """The only line of a program that ends at once."""
    done = programs.run_on(deployment, name)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "group", "option", "value"),
    [
        (API, "api", "port", "many"),
        (API, "api", "auth_strategy", "hope"),
        (API, "api", "host_ip", "not an address"),
        (API, "oslo_policy", "enforce_new_defaults", "perhaps"),
        (API, "keystone_authtoken", "http_connect_timeout", "long"),
        (API, "cors", "max_age", "old"),
        (CONDUCTOR, "DEFAULT", "bind_timeout", "soon"),
        (CONDUCTOR, "DEFAULT", "rpc_response_timeout", "soon"),
        (CONDUCTOR, "oslo_messaging_rabbit", "heartbeat_rate", "high"),
        (CONDUCTOR, "database", "max_pool_size", "large"),
        (CONDUCTOR, "nova", "auth_type", "charm"),
        (AGENT, "placement", "auth_type", "charm"),
        (AGENT, "DEFAULT", "log_config_append", "/nonexistent/log.conf"),
        # The value of these is a secret.
        (CONDUCTOR, "database", "connection", "cyborg:secret@db"),
        (CONDUCTOR, "DEFAULT", "transport_url", "pigeon://cyborg:secret@coop/"),
        (AGENT, "DEFAULT", "transport_url", "cyborg:secret"),
    ],
)
def test_daemon_exits_with_one_line_that_names_the_invalid_option(
    deploy: Callable[..., Deployment],
    alone: Options,
    name: str,
    group: str,
    *,
    option: str,
    value: str,
):
    line = complaint(deploy(alone, {group: {option: value}}), name)
    assert line.startswith(f"{name}: ")
    assert option in line
    if "secret" in value:
        assert line.startswith(f"{name}: [{group}] {option} ")
        assert "secret" not in line
    else:
        assert value in line


def test_api_exits_with_one_line_when_port_is_in_use(
    deploy: Callable[..., Deployment], alone: Options
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = complaint(deploy(alone, {"api": {"port": port}}), API)
    assert f"port = {port} cannot be listened on" in line


def test_api_loads_paste_file_and_logging_sample_and_finishes_request_after_sigterm(
    deploy: Callable[..., Deployment], alone: Options, tmp_path: Path
):
    paste = tmp_path / "api-paste.ini"
    paste.write_text(shapes.PASTE)
    deployment = deploy(alone, {"api": {"api_paste_config": paste, "port": 0}})
    sample = Path(cyborg.__file__).parents[1] / "etc" / "cyborg" / "logging.conf.sample"
    files = ("--config-file", str(deployment.conf), "--log-config-append", str(sample))
    api = deployment.start(API, *files)
    line = api.wait_for(r"(?m)^.* cyborg-api is running$")[0]
    assert re.match(r"\d{4}-\d\d-\d\d [\d:.]+ \d+ INFO cyborg\.service \[-\] ", line)
    port = int(api.wait_for(r"Listening on .*:(\d+)")[1])
    url = f"http://127.0.0.1:{port}"
    answer = requests.get(f"{url}/v2", timeout=PATIENCE)
    assert answer.json()["id"].startswith("v2")
    assert answer.json()["links"][0]["href"].startswith(url)
    assert "X-Openstack-Request-Id" in answer.headers
    assert requests.get(f"{url}/v2/devices", timeout=PATIENCE).json() == {"devices": []}

    body = b'{"no": "list"}'
    head = (
        "POST /v2/device_profiles HTTP/1.1\r\nHost: cyborg\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(head.encode())
        assert b" 100 " in client.recv(1000)  # a thread of the server waits for the rest
        api.signal(signal.SIGTERM)
        api.wait_for("is stopping")
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert api.wait() == 0


def test_only_deep_healthcheck_fails_without_a_database(
    deploy: Callable[..., Deployment], alone: Options
):
    _, url = deploy(alone, {"database": {"connection": NOTHING}}).api()
    shallow = requests.get(url, timeout=PATIENCE)
    assert shallow.status_code == 200
    deep = requests.get(f"{url}/healthcheck", timeout=PATIENCE)
    assert deep.status_code == 503
    assert "database" in deep.text
    assert "conductor" in deep.text
    assert requests.get(f"{url}/v2/devices", timeout=PATIENCE).status_code == 503
