# SPDX-License-Identifier: Apache-2.0
"""mod_wsgi serves the smoke walk, at a root and below ``/accelerator``.

The configurations are those of the page "Web servers", word by word.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import requests

from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.processes import Deployment, Program
from cyborg.tests.fixtures.waiting import PATIENCE, eventually
from cyborg.tests.functional.daemons.service import Service
from cyborg.tests.functional.deployed import servers, walk
from cyborg.tests.functional.deployed.page import PREFIX, WEB_SERVERS, block, filled

Deploy = Callable[..., Deployment]

#: What the page gives it.
PROCESSES = 2
WSGI_MODULES = block(WEB_SERVERS, "mod-wsgi-packages")


def wsgi_block(name: str, packages: Path, **more: object) -> str:
    """A block for mod_wsgi, with the environment of the tests."""
    home = packages.parents[2]
    paths = {
        "/opt/cyborg/lib/python3.11/site-packages": packages,
        "python-home=/opt/cyborg": f"python-home={home}",
    }
    return filled(WEB_SERVERS, name, {**paths, **more})


def children(server: Program) -> set[int]:
    """The processes of Apache that show the name of the service."""
    found = set()
    for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        # One that ends meanwhile is none.
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"cyborg-api"):
                found.add(int(pid))
    return found


def test_mod_wsgi_serves_at_the_root(service: Service, deploy: Deploy, packages: Path):
    deployment, port = deploy(), ports.reserved()
    conf = deployment.conf.rename(deployment.directory / "elsewhere.conf")
    text = wsgi_block("mod-wsgi-root", packages, **{"6666": port})
    text = text.replace("Listen ", "Listen 127.0.0.1:")
    # The files are named in its environment.
    text += filled(WEB_SERVERS, "mod-wsgi-files", {"/etc/accelerator/cyborg.conf": conf})
    commands = f"{WSGI_MODULES}\n{block(WEB_SERVERS, 'mod-wsgi-env')}"
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
