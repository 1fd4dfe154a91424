# SPDX-License-Identifier: Apache-2.0
"""uWSGI, mod_wsgi and cyborg-api serve the smoke walk, at a root and below ``/accelerator``.

The configurations are those of the page "Web servers", word by word.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.processes import Deployment, Program
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.daemons.service import Http, Service
from cyborg.tests.functional.deployed import servers, walk
from cyborg.tests.functional.deployed.page import block, filled

Deploy = Callable[..., Deployment]

PAGE = "web-servers"
#: What the page gives both servers.
PROCESSES = 2
PREFIX = "/accelerator"
LISTENING = r"bound to TCP address (127\.0\.0\.1:\d+)"
WSGI_MODULES = block(PAGE, "mod-wsgi-packages")
PROXY_MODULES = block(PAGE, "proxy-packages")


def uwsgi(deploy: Deploy, name: str, named: str, address: str) -> Program:
    """uWSGI with two blocks of the page; the second one names a configuration elsewhere."""
    deployment = deploy()
    (elsewhere := deployment.directory / "elsewhere").mkdir()
    deployment.conf.rename(elsewhere / "cyborg.conf")
    text = filled(PAGE, name, {address: "127.0.0.1:0"})
    text += filled(PAGE, named, {"/etc/accelerator": elsewhere}).replace("[uwsgi]", "")
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


def wsgi_block(name: str, packages: Path, **more: object) -> str:
    """A block for mod_wsgi, with the environment of the tests."""
    home = packages.parents[2]
    paths = {
        "/opt/cyborg/lib/python3.11/site-packages": packages,
        "python-home=/opt/cyborg": f"python-home={home}",
    }
    return filled(PAGE, name, {**paths, **more})


def children(server: Program) -> set[int]:
    """The processes of Apache that show the name of the service."""
    found = set()
    for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"cyborg-api"):
            found.add(int(pid))
    return found


def test_mod_wsgi_serves_at_the_root(service: Service, deploy: Deploy, packages: Path):
    deployment, port = deploy(), ports.reserved()
    conf = deployment.conf.rename(deployment.directory / "elsewhere.conf")
    text = wsgi_block("mod-wsgi-root", packages, **{"6666": port})
    text = text.replace("Listen ", "Listen 127.0.0.1:")
    # The files are named in its environment.
    text += filled(PAGE, "mod-wsgi-files", {"/etc/accelerator/cyborg.conf": conf})
    commands = f"{WSGI_MODULES}\n{block(PAGE, 'mod-wsgi-env')}"
    with servers.apache(deployment, text, commands=commands) as server:
        walk.smoke(f"http://127.0.0.1:{port}", service)
        walk.nova_finds(f"http://127.0.0.1:{port}/v2")
        walk.nova_finds(f"http://127.0.0.1:{port}")
        assert len(children(server)) == PROCESSES
    assert "Traceback" not in server.output


def test_mod_wsgi_serves_below_a_path(service: Service, deploy: Deploy, packages: Path):
    # As nova-operator has it: no cyborg.conf, only a directory of pieces.
    deployment, port = deploy(), ports.reserved()
    pieces = deployment.directory / ".cyborg" / "cyborg.conf.d"
    pieces.mkdir(parents=True)
    deployment.conf.rename(pieces / "01-service.conf")
    text = wsgi_block("mod-wsgi-accelerator", packages)
    with servers.apache(deployment, text, commands=WSGI_MODULES, listen=port) as server:
        url = f"http://127.0.0.1:{port}{PREFIX}"
        walk.smoke(url, service)
        walk.nova_finds(f"{url}/v2")
        walk.nova_finds(url)
        # The rest of the server is its own.
        assert requests.get(f"http://127.0.0.1:{port}/v2", timeout=PATIENCE).status_code in {
            403,
            404,
        }
    assert "Traceback" not in server.output


def api_behind(deployment: Deployment, conf: str) -> str:
    """``cyborg-api`` with a block of configuration more; the URL by which a proxy reaches it."""
    file = deployment.directory / "more.conf"
    file.write_text(conf)
    arguments = ("--config-file", str(deployment.conf), "--config-file", str(file))
    program = deployment.start("cyborg-api", *arguments)
    port = program.wait_for(r"Listening on .*:(\d+)")[1]
    return f"http://127.0.0.1:{port}"


def test_cyborg_api_serves_behind_proxy_that_strips_or_keeps_path(service: Service, deploy: Deploy):
    deployment, port = deploy({"api": {"port": 0}}), ports.reserved()
    url = f"http://127.0.0.1:{port}{PREFIX}"
    conf = filled(PAGE, "endpoint-conf", {"http://controller": f"http://127.0.0.1:{port}"})
    inner = api_behind(deployment, conf)
    for name in ("proxy-strip", "proxy-keep"):
        text = filled(PAGE, name, {"http://127.0.0.1:6666": inner})
        with servers.apache(deployment, text, commands=PROXY_MODULES, listen=port):
            walk.smoke(url, service)
            walk.nova_finds(f"{url}/v2")
            walk.nova_finds(url)
            # Without the proxy: at its own root for load balancers, and below the path.
            walk.documents(Http(inner), url)
            walk.smoke(f"{inner}{PREFIX}", service, base=url)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = tmp_path / "cyborg.pem", tmp_path / "cyborg.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_cyborg_api_follows_headers_of_proxy(
    service: Service,
    deploy: Deploy,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
):
    deployment, port = deploy({"api": {"port": 0}}), ports.reserved()
    cert, key = certificate
    inner = api_behind(deployment, block(PAGE, "headers-conf"))
    text = filled(PAGE, "proxy-headers", {"http://127.0.0.1:6666": inner})
    with servers.apache(deployment, text, commands=PROXY_MODULES, listen=port):
        for name in ("127.0.0.1", "localhost"):  # whichever name the client knows
            url = f"http://{name}:{port}{PREFIX}"
            walk.documents(Http(url), url)
        walk.smoke(f"http://127.0.0.1:{port}{PREFIX}", service)
        walk.nova_finds(f"http://127.0.0.1:{port}{PREFIX}/v2")
        links_are_not_forged(f"http://127.0.0.1:{port}{PREFIX}")
    values = {
        "/etc/ssl/certs/cyborg.pem": cert,
        "/etc/ssl/private/cyborg.key": key,
        "http://127.0.0.1:6667": inner,
        "6666": port,
    }
    text = filled(PAGE, "proxy-tls", values).replace("Listen ", "Listen 127.0.0.1:")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cert))
    with servers.apache(deployment, text, commands=PROXY_MODULES):
        walk.smoke(f"https://127.0.0.1:{port}", service)
        links_are_not_forged(f"https://127.0.0.1:{port}")


def links_are_not_forged(url: str) -> None:
    """What a client says of its way counts for nothing."""
    forged = {
        "Forwarded": "for=192.0.2.1;proto=ftp;host=evil",
        "X-Forwarded-Host": "evil",
        "X-Forwarded-Proto": "ftp",
        "X-Forwarded-Prefix": "/evil",
        "X-Forwarded-For": "192.0.2.1",
    }
    answer = requests.get(f"{url}/v2", headers=forged, timeout=PATIENCE)
    assert answer.json()["links"][0]["href"] == f"{url}/v2/"


def test_uwsgi_without_a_configuration_logs_the_reason_once_a_minute(deploy: Deploy):
    deployment = deploy()
    deployment.conf.unlink()
    server, url = deployment.uwsgi(processes=1)
    before = len(server.output.splitlines())
    for _ in range(20):
        assert requests.get(f"{url}/v2/devices", timeout=PATIENCE).status_code == 503
    assert server.stop() == 0
    lines = [line for line in server.output.splitlines()[before:] if "[pid: " not in line]
    (reason,) = [line for line in lines if "answers 503" in line]
    assert "[database] connection is not set" in reason
    assert f"No configuration file was found in {deployment.directory}/.cyborg" in reason
    assert len([line for line in lines if "is not set" in line]) == 1
    assert "Traceback" not in server.output


def test_web_server_logs_invalid_configuration_and_recovers(deploy: Deploy, packages: Path):
    deployment, port = deploy(), ports.reserved()
    good = deployment.conf.read_text()
    deployment.conf.write_text("[api]\nport = many\n")
    text = wsgi_block("mod-wsgi-root", packages, **{"6666": port, "processes=2": "processes=1"})
    text = text.replace("Listen ", "Listen 127.0.0.1:")
    with servers.apache(deployment, text, commands=WSGI_MODULES) as server:
        answer = requests.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE)
        assert answer.status_code == 503
        assert "not configured" in answer.json()["error_message"]
        assert re.search(r"\[api\] port cannot be 'many'", server.output)
        deployment.conf.write_text(good)
        eventually(
            lambda: requests.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE).status_code == 200,
            lambda: server.output,
        )
