# SPDX-License-Identifier: Apache-2.0
"""The API alone, in each web server and behind each front of the page "Web servers"."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from cyborg.db.engine import Database
from cyborg.db.models import METADATA
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.pages import free_port
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg.tests.functional import deployments
from cyborg.tests.functional.deployed import servers
from cyborg.tests.functional.deployed.conftest import packages
from cyborg.tests.functional.deployed.page import block, filled
from cyborg.tests.functional.edge.attacker import Target
from cyborg.tests.unit.api.test_doors import certificate

__all__ = ["certificate", "packages"]

# Plain runs of the tests need neither a broker nor web servers of the distribution.
collect_ignore = [] if deployments.HAS_BROKER else ["test_attacks.py"]

PAGE: Final = "web-servers"
#: The ways to serve the API; a run tries one of them, a full run all.
WAYS: Final = ("cyborg-api", "uwsgi", "mod-wsgi", "nginx", "haproxy")
_NGINX: Final = """\
daemon off;
pid {directory}/nginx.pid;
error_log stderr;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{text}
}}
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A configuration without tokens and without a bus, on an empty database."""
    directory = tmp_path_factory.mktemp("edge")
    url = f"sqlite:///{directory}/cyborg.sqlite"
    database = Database(url)
    METADATA.create_all(database.engine)
    database.close()
    options: Options = {
        "DEFAULT": {"transport_url": "fake://", "state_path": directory},
        "api": {"auth_strategy": "noauth", "noauth_anywhere": "true"},
        "database": {"connection": url},
    }
    with Deployment(directory, options) as made:
        yield made


@pytest.fixture(scope="module", params=chosen(WAYS, "edge"))
def target(
    request: pytest.FixtureRequest, deployment: Deployment, certificate: tuple[Path, Path]
) -> Iterator[Target]:
    """The API, as clients reach it in one of the ways."""
    with ExitStack() as endings:
        start: Callable[..., Target] = {
            "cyborg-api": _alone,
            "uwsgi": _uwsgi,
            "mod-wsgi": _mod_wsgi,
            "nginx": _nginx,
            "haproxy": _haproxy,
        }[request.param]
        yield start(deployment, endings, certificate, request)


def _alone(
    deployment: Deployment,
    _endings: ExitStack,
    certificate: tuple[Path, Path],
    _request: pytest.FixtureRequest,
) -> Target:
    cert, key = certificate
    tls: Options = {"api": {"enable_ssl_api": "true"}, "ssl": {"cert_file": cert, "key_file": key}}
    program, url = deployment.api(tls)
    return Target(int(url.rpartition(":")[2]), cert, [program])


def _uwsgi(
    deployment: Deployment,
    _endings: ExitStack,
    _certificate: tuple[Path, Path],
    _request: pytest.FixtureRequest,
) -> Target:
    text = filled(PAGE, "uwsgi-root", {"0.0.0.0:6666": "127.0.0.1:0"})
    text += f"pyargv = --config-file {deployment.conf}\n"
    file = deployment.directory / "uwsgi.ini"
    file.write_text(text)
    program = deployment.start("uwsgi", "--ini", str(file), "--virtualenv", sys.prefix)
    port = program.wait_for(r"bound to TCP address 127\.0\.0\.1:(\d+)")[1]
    program.wait_for(r"(?s)(spawned uWSGI worker .*){2}")
    return Target(int(port), None, [program])


def _mod_wsgi(
    deployment: Deployment,
    endings: ExitStack,
    _certificate: tuple[Path, Path],
    request: pytest.FixtureRequest,
) -> Target:
    found: Path = request.getfixturevalue("packages")
    port = free_port()
    paths = {
        "/opt/cyborg/lib/python3.11/site-packages": found,
        "python-home=/opt/cyborg": f"python-home={found.parents[2]}",
        "6666": port,
    }
    text = filled(PAGE, "mod-wsgi-root", paths).replace("Listen ", "Listen 127.0.0.1:")
    text += filled(PAGE, "mod-wsgi-files", {"/etc/accelerator/cyborg.conf": deployment.conf})
    commands = f"{block(PAGE, 'mod-wsgi-packages')}\n{block(PAGE, 'mod-wsgi-env')}"
    program = endings.enter_context(servers.apache(deployment, text, commands=commands))
    return Target(port, None, [program])


def _front(
    deployment: Deployment,
    endings: ExitStack,
    certificate: tuple[Path, Path],
    write: Callable[[Path, str, int], list[str]],
    ready: str,
) -> Target:
    """A front before cyborg-api; ``write`` returns its command, ``ready`` is in its output."""
    api, inner = deployment.api()
    port = free_port()
    command = write(certificate[0], inner, port)
    log = deployment.directory / f"{Path(command[0]).name}.out"
    front = Program(command, log=log, environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    endings.callback(front.stop)
    if ready:
        front.wait_for(ready)
    return Target(port, certificate[0], [api, front])


def _nginx(
    deployment: Deployment,
    endings: ExitStack,
    certificate: tuple[Path, Path],
    _request: pytest.FixtureRequest,
) -> Target:
    def write(cert: Path, inner: str, port: int) -> list[str]:
        values = {
            "/etc/ssl/certs/cyborg.pem": cert,
            "/etc/ssl/private/cyborg.key": certificate[1],
            "listen 6666": f"listen 127.0.0.1:{port}",
            "http://127.0.0.1:6667": inner,
        }
        file = deployment.directory / "nginx.conf"
        text = filled(PAGE, "front-nginx", values)
        user = "user root;" if os.geteuid() == 0 else ""
        file.write_text(_NGINX.format(directory=deployment.directory, text=text, user=user))
        return ["/usr/sbin/nginx", "-e", "stderr", "-c", str(file)]

    return _front(deployment, endings, certificate, write, "")


def _haproxy(
    deployment: Deployment,
    endings: ExitStack,
    certificate: tuple[Path, Path],
    _request: pytest.FixtureRequest,
) -> Target:
    def write(cert: Path, inner: str, port: int) -> list[str]:
        both = deployment.directory / "both.pem"
        both.write_text(cert.read_text() + certificate[1].read_text())
        values = {
            "/etc/ssl/private/cyborg-with-key.pem": both,
            "bind :6666": f"bind 127.0.0.1:{port}",
            "127.0.0.1:6667": re.sub("http://", "", inner),
        }
        file = deployment.directory / "haproxy.cfg"
        file.write_text(filled(PAGE, "front-haproxy", values))
        return ["/usr/sbin/haproxy", "-db", "-f", str(file)]

    return _front(deployment, endings, certificate, write, "")
