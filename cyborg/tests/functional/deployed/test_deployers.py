# SPDX-License-Identifier: Apache-2.0
"""The service with the files and command lines of kolla-ansible, openstack-helm and nova-operator.

The page "Kolla, Helm and operators" says which test stands for which demand.
"""

import contextlib
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.rpc import keys
from cyborg.rpc.keys import CONTROLLER, HOST, MASTER, Keys
from cyborg.service import wait_until
from cyborg.tests.fixtures.pages import free_port
from cyborg.tests.fixtures.processes import Deployment, Options, Program, script
from cyborg.tests.functional import programs
from cyborg.tests.functional.daemons.service import Http, Service
from cyborg.tests.functional.deployed import servers, shapes, walk
from cyborg.tests.functional.deployed.page import filled
from cyborg.tests.functional.deployments import merged

Deploy = Callable[..., Deployment]

#: Seconds until uWSGI has ended after it was told to.
_MERCY = 90.0
#: Where nothing listens, and no database is.
GONE: Options = {"database": {"connection": "mysql+pymysql://cyborg:secret@127.0.0.1:9/cyborg"}}


@pytest.fixture
def kolla(deploy: Deploy) -> Iterator[Callable[..., tuple[Program, str, Path]]]:
    """kolla's container of the API, and its URL and directory: uWSGI as the user of the image."""

    started: list[Program] = []

    def start(*more: Options) -> tuple[Program, str, Path]:
        paste: Options = {"api": {"api_paste_config": "api-paste.ini"}}
        deployment = deploy(paste, *more)
        directory, port = deployment.directory, free_port()
        # Everything lies where it is found without arguments.
        (directory / ".cyborg").mkdir()
        deployment.conf.rename(directory / ".cyborg" / "cyborg.conf")
        (directory / ".cyborg" / "api-paste.ini").write_text(shapes.PASTE)
        ini = directory / "cyborg-api-uwsgi.ini"
        ini.write_text(
            shapes.KOLLA_UWSGI.format(port=port, directory=directory, environment=sys.prefix)
        )
        program = Program(
            [*servers.unprivileged(), script("uwsgi"), "--ini", str(ini)],
            log=directory / "uwsgi.out",
            environment={**deployment.environment, **servers.user_cyborg(directory)},
        )
        started.append(program)
        url = f"http://127.0.0.1:{port}"
        assert servers.answers(url), program.output
        return program, url, directory

    yield start
    for program in started:
        # How it ends in order, one of the tests looks at; it can take minutes.
        if program.running:
            program.kill()


def test_kolla_serves_with_its_own_paste_file_uwsgi_and_user(
    service: Service, kolla: Callable[..., tuple[Program, str, Path]], tmp_path: Path
):
    logs = tmp_path / "log"
    logs.mkdir()
    written = {"DEFAULT": {"log_dir": logs, "use_stderr": "false"}, "api": {"port": 6666}}
    program, url, _directory = kolla(written)
    walk.smoke(url, service)
    walk.nova_finds(f"{url}/v2")
    # fluentd tells the services by the names of their files.
    assert [path.name for path in logs.iterdir()] == [f"{API}.log"]
    program.signal(signal.SIGTERM)

    def ended() -> bool:
        # A worker of uWSGI 2.0.30 that is told to end just after a request waits for another one,
        # and its master, without a limit, for the worker: containers are killed then.
        with contextlib.suppress(requests.RequestException):
            requests.get(f"{url}/", timeout=1)
        return not program.running

    assert wait_until(ended, timeout=_MERCY), program.output
    assert program.wait() == 0


def test_probes_are_answered_within_a_second_without_database_and_broker(
    kolla: Callable[..., tuple[Program, str, Path]],
):
    dead: Options = {"DEFAULT": {"transport_url": "rabbit://cyborg:secret@127.0.0.1:9//"}}
    public: Options = {"api": {"public_endpoint": "https://cloud.example.org:6666"}}
    _, url, _ = kolla(GONE, dead, public)
    # Each worker makes its application at its first request.
    took = [requests.get(f"{url}/", timeout=60) for _ in range(12)]
    assert {answer.status_code for answer in took} == {200}
    assert sorted(answer.elapsed.total_seconds() for answer in took)[6] < 1
    assert requests.get(f"{url}/v2/devices", timeout=60).status_code == 503
    (link,) = requests.get(f"{url}/v2", timeout=60).json()["links"]
    assert link["href"] == "https://cloud.example.org:6666/v2/"


def test_bootstrap_finds_configuration_without_arguments(deploy: Deploy, tmp_path: Path):
    deployment = deploy({"database": {"connection": f"sqlite:///{tmp_path}/bootstrap.sqlite"}})
    home = deployment.directory / ".cyborg"
    home.mkdir()
    conf = deployment.conf.rename(home / "cyborg.conf")
    assert deployment.start("cyborg-dbsync", "upgrade").wait() == 0
    # nova-operator has no cyborg.conf, only a directory of pieces.
    (deployment.directory / "cyborg.conf.d").mkdir()
    pieces = f"{deployment.directory}/cyborg.conf.d/"
    conf.rename(f"{pieces}/01-default.conf")
    for words in ("upgrade", "version"):
        line = ("--config-dir", pieces, words)
        ran = programs.run("cyborg-dbsync", *line, environment=deployment.environment)
        assert ran.returncode == 0, ran.stderr
    assert re.search(r"^[0-9a-f]{12}$", ran.stdout, re.MULTILINE), ran.stdout


@pytest.mark.parametrize("name", [CONDUCTOR, AGENT])
def test_kolla_ansible_options_start_everything(deploy: Deploy, options: Options, name: str):
    # What the tools write; where things are, the tests know better.
    ours = {"DEFAULT": {"log_dir": "", "log_file": "", "use_stderr": "true", "debug": "false"}}
    written = {group: dict(values) for group, values in shapes.KOLLA.items()}
    for group in ("placement", "nova", "oslo_messaging_notifications", "oslo_messaging_rabbit"):
        written.pop(group)
    deployment = deploy()
    # As nova-operator has it: only a directory of pieces.
    (pieces := deployment.directory / "cyborg.conf.d").mkdir()
    deployment.write("cyborg.conf.d/01-default", merged(written, dict(options), ours))
    # The override file of the guide, whose drivers and devices this machine does not have.
    files = {"/etc/cyborg-keys": deployment.directory}
    (pieces / "00-override.conf").write_text(filled("kolla", "kolla-override", files))
    master = Keys(MASTER, CONTROLLER, (keys.generate(),))
    host = dict(options).get("DEFAULT", {}).get("host", socket.gethostname())
    own = master.derived(HOST, str(host)) if name == AGENT else master
    keys.write(deployment.directory / "signing-keys.json", own)
    program = deployment.start(name, "--config-dir", str(pieces))
    program.wait_for(f"{name} is running")
    assert "ramdisk_heartbeat_timeout" in program.output  # told, not refused
    # Its probe asks for the name in the command line, and for a process that is not a zombie.
    assert program.pid in servers.found_by_name(name)
    assert program.stop() == 0


def test_helm_starts_the_api_with_its_own_logging(deploy: Deploy):
    deployment = deploy({"api": {"port": 0}})
    logging = deployment.directory / "logging-cyborg.conf"
    logging.write_text(shapes.HELM_LOGGING)
    files = ("--config-file", str(deployment.conf), "--log-config-append", str(logging))
    api = deployment.start(API, *files)
    port = api.wait_for(r"Listening on .*:(\d+)")[1]
    documents = Http(f"http://127.0.0.1:{port}")
    walk.documents(documents, documents.url, deep=False)
    assert api.stop() == 0
