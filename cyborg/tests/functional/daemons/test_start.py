# SPDX-License-Identifier: Apache-2.0
"""How the daemons start and end: checks 115, 117 and 120 to 122 of a drop-in replacement.

Configuration, logs, signals, names, and what load balancers ask.
"""

import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg.tests.functional import deployments
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


@pytest.fixture(scope="module")
def runs(
    options: Options, alone: Options, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """All three programs, with a good many options that nobody knows any more."""
    directory = tmp_path_factory.mktemp("runs")
    logs, snippets = directory / "log", directory / "cyborg.conf.d"
    for one in (logs, snippets):
        one.mkdir()
    where = {"DEFAULT": {"log_dir": logs, "use_stderr": "true"}}
    with Deployment(directory, deployments.merged(options, alone, OBSOLETE)) as deployment:
        deployment.conf.rename(snippets / "50-cyborg.conf")
        deployment.write("cyborg.conf.d/60-log", where)
        started = {name: deployment.start(name, "--config-dir", str(snippets)) for name in DAEMONS}
        for name, program in started.items():
            program.wait_for(f"{name} is running")
            program.signal(signal.SIGHUP)
        return {
            name: Run(
                command_line=Path(f"/proc/{program.pid}/cmdline").read_text().split("\0"),
                log=(logs / f"{name}.log").read_text(),
                status=program.stop(timeout=12),
                output=program.output,
            )
            for name, program in started.items()
        }


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_starts_with_config_dir_only_survives_sighup_and_exits_with_0(
    runs: dict[str, Run], name: str
):
    assert runs[name].status == 0  # and not -1, killed by SIGHUP
    assert f"{name} is running" in runs[name].log


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_output_has_only_log_lines_and_no_library_warnings(runs: dict[str, Run], name: str):
    # Nothing but lines of the log, and in them nothing that an operator cannot change.
    for line in runs[name].output.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d [\d:.]+ \d+ (INFO|WARNING) ", line), line
        assert not re.search(r"DeprecationWarning|[Ee]ventlet", line), line


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_ignores_unknown_options_and_sections(runs: dict[str, Run], name: str):
    assert "nobody" not in runs[name].output
    assert runs[name].status == 0


@pytest.mark.parametrize("name", DAEMONS)
def test_process_table_shows_daemon_names(runs: dict[str, Run], name: str):
    assert any(word.endswith(f"/{name}") for word in runs[name].command_line)


def test_api_finishes_request_in_progress_after_sigterm(
    deploy: Callable[..., Deployment], alone: Options
):
    api, url = deploy(alone).api()
    port = int(url.rpartition(":")[2])
    body = b'{"no": "list"}'
    head = (
        "POST /v2/device_profiles HTTP/1.1\r\nHost: cyborg\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(head.encode())
        assert b" 100 " in client.recv(1000)  # a thread of the server waits for the rest
        api.signal(signal.SIGTERM)
        api.wait_for("is stopping")
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert api.wait(timeout=12) == 0


def complaint(program: Program) -> str:
    """The only line of a program that ends at once."""
    assert program.wait() == 1
    (line,) = program.output.splitlines()
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
    ],
)
def test_daemon_exits_with_one_line_that_names_the_invalid_option(
    deploy: Callable[..., Deployment],
    alone: Options,
    name: str,
    group: str,
    option: str,
    value: str,
):
    line = complaint(deploy(alone, {group: {option: value}}).begin(name))
    assert line.startswith(f"{name}: ")
    assert option in line
    assert value in line


@pytest.mark.parametrize(
    ("name", "group", "option", "value"),
    [
        (CONDUCTOR, "database", "connection", "cyborg:secret@db"),
        (CONDUCTOR, "DEFAULT", "transport_url", "pigeon://cyborg:secret@coop/"),
        (AGENT, "DEFAULT", "transport_url", "cyborg:secret"),
    ],
)
def test_invalid_url_is_named_without_its_password(
    deploy: Callable[..., Deployment],
    alone: Options,
    name: str,
    group: str,
    option: str,
    value: str,
):
    line = complaint(deploy(alone, {group: {option: value}}).begin(name))
    assert line.startswith(f"{name}: [{group}] {option} ")
    assert "secret" not in line


@pytest.mark.parametrize(("name", "missing"), [(CONDUCTOR, "nova"), (AGENT, "placement")])
def test_daemon_names_the_section_without_an_account(
    deploy: Callable[..., Deployment], options: Options, alone: Options, name: str, missing: str
):
    kept = {group: values for group, values in options.items() if group != missing}
    deployment = deploy()
    file = deployment.write("without", deployments.merged(kept, alone))
    line = complaint(deployment.start(name, "--config-file", str(file)))
    assert line.startswith(f"{name}: [{missing}] auth_type is not set")


def test_api_exits_with_one_line_when_port_is_in_use(
    deploy: Callable[..., Deployment], alone: Options
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = complaint(deploy(alone, {"api": {"port": port}}).start(API))
    assert f"port = {port} cannot be listened on" in line


def test_api_loads_paste_file_of_deployers(
    deploy: Callable[..., Deployment], alone: Options, tmp_path: Path
):
    paste = tmp_path / "api-paste.ini"
    paste.write_text(shapes.PASTE)
    _, url = deploy(alone, {"api": {"api_paste_config": paste}}).api()
    answer = requests.get(f"{url}/v2", timeout=10)
    assert answer.json()["id"].startswith("v2")
    assert answer.json()["links"][0]["href"].startswith(url)
    assert "X-Openstack-Request-Id" in answer.headers
    assert requests.get(f"{url}/v2/devices", timeout=10).json() == {"devices": []}


def test_only_deep_healthcheck_fails_without_a_database(
    deploy: Callable[..., Deployment], alone: Options
):
    _, url = deploy(alone, {"database": {"connection": NOTHING}}).api()
    shallow = requests.get(url, timeout=10)
    assert shallow.status_code == 200
    assert shallow.elapsed.total_seconds() < 1
    deep = requests.get(f"{url}/healthcheck", timeout=10)
    assert deep.status_code == 503
    assert "database" in deep.text
    assert "conductor" in deep.text
    assert requests.get(f"{url}/v2/devices", timeout=10).status_code == 503
