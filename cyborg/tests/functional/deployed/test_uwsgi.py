# SPDX-License-Identifier: Apache-2.0
"""uWSGI serves the smoke walk, at a root and below ``/accelerator``.

The configurations are those of the page "Web servers", word by word.
"""

import sys
from collections.abc import Callable

import pytest
import requests

from cyborg.tests.fixtures.processes import Deployment, Program
from cyborg.tests.functional.daemons.service import Service
from cyborg.tests.functional.deployed import walk
from cyborg.tests.functional.deployed.page import PREFIX, WEB_SERVERS, filled

Deploy = Callable[..., Deployment]

#: What the page gives it.
PROCESSES = 2
LISTENING = r"bound to TCP address (127\.0\.0\.1:\d+)"


def uwsgi(deploy: Deploy, name: str, named: str, address: str) -> Program:
    """uWSGI with two blocks of the page; the second one names a configuration elsewhere."""
    deployment = deploy()
    (elsewhere := deployment.directory / "elsewhere").mkdir()
    deployment.conf.rename(elsewhere / "cyborg.conf")
    text = filled(WEB_SERVERS, name, {address: "127.0.0.1:0"})
    text += filled(WEB_SERVERS, named, {"/etc/accelerator": elsewhere}).replace("[uwsgi]", "")
    file = deployment.directory / "cyborg-api-uwsgi.ini"
    file.write_text(text)
    return deployment.start("uwsgi", "--ini", str(file), "--virtualenv", sys.prefix)


@pytest.mark.parametrize(
    ("name", "named", "address", "mount"),
    [
        ("uwsgi-root", "uwsgi-pyargv", "0.0.0.0:6666", ""),
        ("uwsgi-accelerator", "uwsgi-files", "0.0.0.0:80", PREFIX),
    ],
)
def test_uwsgi_serves_with_the_documented_configuration(
    service: Service, deploy: Deploy, name: str, named: str, *, address: str, mount: str
):
    server = uwsgi(deploy, name, named, address)
    url = f"http://{server.wait_for(LISTENING)[1]}{mount}"
    server.wait_for(rf"(?s)(spawned uWSGI worker .*){{{PROCESSES}}}")
    walk.smoke(url, service)
    walk.nova_finds(f"{url}/v2")
    walk.nova_finds(url)
    assert server.stop() == 0


def test_uwsgi_reads_the_named_directory(service: Service, deploy: Deploy):
    server = uwsgi(deploy, "uwsgi-root", "uwsgi-directory", "0.0.0.0:6666")
    walk.nova_finds(f"http://{server.wait_for(LISTENING)[1]}")
    assert server.stop() == 0


def test_uwsgi_without_a_configuration_logs_the_reason_once_a_minute(deploy: Deploy):
    deployment = deploy()
    deployment.conf.unlink()
    server, url = deployment.uwsgi(processes=1)
    before = len(server.output.splitlines())
    for _ in range(20):
        assert requests.get(f"{url}/v2/devices", timeout=60).status_code == 503
    assert server.stop() == 0
    lines = [line for line in server.output.splitlines()[before:] if "[pid: " not in line]
    (reason,) = [line for line in lines if "answers 503" in line]
    assert "[database] connection is not set" in reason
    assert f"No configuration file was found in {deployment.directory}/.cyborg" in reason
    assert len([line for line in lines if "is not set" in line]) == 1
    assert "Traceback" not in server.output
