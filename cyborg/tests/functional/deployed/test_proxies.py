# SPDX-License-Identifier: Apache-2.0
"""cyborg-api serves the smoke walk behind a proxy, at a root and below ``/accelerator``.

The configurations are those of the page "Web servers", word by word.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from cyborg.tests.fixtures.pages import free_port
from cyborg.tests.fixtures.processes import Deployment
from cyborg.tests.functional.daemons.service import Http, Service
from cyborg.tests.functional.deployed import servers, walk
from cyborg.tests.functional.deployed.page import PREFIX, WEB_SERVERS, block, filled

Deploy = Callable[..., Deployment]

PROXY_MODULES = block(WEB_SERVERS, "proxy-packages")


def api_behind(deployment: Deployment, conf: str) -> str:
    """``cyborg-api`` with a block of configuration more; the URL by which a proxy reaches it."""
    file = deployment.directory / "more.conf"
    file.write_text(conf)
    arguments = ("--config-file", str(deployment.conf), "--config-file", str(file))
    program = deployment.start("cyborg-api", *arguments)
    port = program.wait_for(r"Listening on .*:(\d+)")[1]
    return f"http://127.0.0.1:{port}"


def test_cyborg_api_serves_behind_proxy_that_strips_or_keeps_path(service: Service, deploy: Deploy):
    deployment, port = deploy({"api": {"port": 0}}), free_port()
    url = f"http://127.0.0.1:{port}{PREFIX}"
    conf = filled(WEB_SERVERS, "endpoint-conf", {"http://controller": f"http://127.0.0.1:{port}"})
    inner = api_behind(deployment, conf)
    for name in ("proxy-strip", "proxy-keep"):
        text = filled(WEB_SERVERS, name, {"http://127.0.0.1:6666": inner})
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
    deployment, port = deploy({"api": {"port": 0}}), free_port()
    cert, key = certificate
    inner = api_behind(deployment, block(WEB_SERVERS, "headers-conf"))
    text = filled(WEB_SERVERS, "proxy-headers", {"http://127.0.0.1:6666": inner})
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
    text = filled(WEB_SERVERS, "proxy-tls", values).replace("Listen ", "Listen 127.0.0.1:")
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
    answer = requests.get(f"{url}/v2", headers=forged, timeout=60)
    assert answer.json()["links"][0]["href"] == f"{url}/v2/"
