# SPDX-License-Identifier: Apache-2.0
"""Entry points of deployers: the lazy WSGI application, paste files, the cyborg-api server."""

import http.client
import importlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import webtest
from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception
from cyborg.api import app
from cyborg.api.middleware import auth_token
from cyborg.api.server import HttpServer
from cyborg.tests.fixtures.waiting import PATIENCE, Meeting, joined
from cyborg.tests.unit.api.conftest import MakeConf
from cyborg.wsgi.api import DIRECTORY, FILES, LazyApplication, arguments

SHIPPED = Path(__file__).parents[4] / "etc" / "cyborg" / "api-paste.ini"


def heartbeat(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["wsgi.url_scheme"].encode()]


def test_application_is_made_once_at_first_request() -> None:
    made: list[int] = []
    together = Meeting(4)

    def make(environ: Mapping[str, Any]) -> Any:
        made.append(1)
        return heartbeat

    application = LazyApplication(make)
    assert made == []

    def ask() -> None:
        together.meet()
        assert webtest.TestApp(application).get("/").status_int == 200

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    joined(*threads)
    assert made == [1]


def test_application_reports_missing_configuration_and_retries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = [exception.ConfigError(reason="[x] y is wrong.")]

    def make(environ: Mapping[str, Any]) -> Any:
        if faults:
            raise faults.pop()
        return heartbeat

    client = webtest.TestApp(LazyApplication(make))
    answer = client.get("/", expect_errors=True)
    assert answer.status_int == 503
    assert "not configured" in answer.json["error_message"]
    assert "[x] y is wrong." in caplog.text
    assert "wrong" not in answer.text
    assert client.get("/").status_int == 200


def test_application_logs_each_reason_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, reasons = [0.0], ["a is wrong."]

    def make(environ: Mapping[str, Any]) -> Any:
        raise exception.ConfigError(reason=reasons[-1])

    client = webtest.TestApp(LazyApplication(make, clock=lambda: now[0]))
    for now[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        assert client.get("/", status=503)
    assert caplog.text.count("a is wrong.") == 2
    reasons.append("b is wrong.")
    client.get("/", status=503)
    assert caplog.text.count("b is wrong.") == 1


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with files of both names, and pieces for one of them."""
    (tmp_path / "cyborg.conf").touch()
    (tmp_path / "cyborg-api.conf").touch()
    (tmp_path / "cyborg-api.conf.d").mkdir()
    return tmp_path


class Uwsgi(ModuleType):
    """What uWSGI puts beside the modules of its processes."""

    def __init__(self, opt: Mapping[str, object]) -> None:
        super().__init__("uwsgi")
        self.opt = opt


NAMED = ["--config-file", "/a.conf", "--config-file", "/etc/cyborg/b.conf"]


@pytest.mark.parametrize(
    ("variables", "opt", "options"),
    [
        ({}, {}, []),
        ({FILES: "/a.conf; b.conf;"}, {}, NAMED),
        ({FILES: "/a.conf;b.conf", DIRECTORY: "/x"}, {}, [*NAMED[:3], "/x/b.conf"]),
        ({DIRECTORY: "/nowhere"}, {}, ["--config-file", "/nowhere/cyborg.conf"]),
        ({FILES: "/a.conf;b.conf"}, {"pyargv": b"--config-file /c.conf"}, NAMED),
        ({}, {"env": b"OS_CYBORG_CONFIG_FILES=/a.conf;b.conf"}, NAMED),
        ({}, {"env": [b"X=1", b"OS_CYBORG_CONFIG_FILES=/a.conf;b.conf"]}, NAMED),
        (
            {},
            {"pyargv": b"--config-dir /d --log-file /x --config-file=/c.conf '--config-file' /e"},
            ["--config-file", "/c.conf", "--config-file", "/e", "--config-dir", "/d"],
        ),
    ],
)
def test_configuration_arguments_of_web_servers_have_an_order(
    variables: Mapping[str, str],
    opt: Mapping[str, object],
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["server", "--config-file", "/of/the/server"])
    monkeypatch.setitem(sys.modules, "uwsgi", Uwsgi(opt))
    assert arguments(variables) == options
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert arguments({}) == options


def test_configuration_directory_is_read_like_the_default(place: Path) -> None:
    assert arguments({DIRECTORY: str(place)}) == [
        *("--config-file", f"{place}/cyborg.conf", "--config-file", f"{place}/cyborg-api.conf"),
        *("--config-dir", f"{place}/cyborg-api.conf.d"),
    ]


@pytest.mark.parametrize("pyargv", [b"--config-file", b"--config-file 'a"])
def test_invalid_uwsgi_arguments_are_refused(
    pyargv: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", Uwsgi({"pyargv": pyargv}))
    with pytest.raises(exception.ConfigError, match="pyargv = --config-file"):
        arguments({})


def test_import_of_entry_point_has_no_side_effects(tmp_path: Path) -> None:
    """The application then reads each corrected configuration, at last the shipped paste file."""
    script = (
        "import io, socket, sys, pathlib, webtest\n"
        "def refuse(*_): raise AssertionError('a connection at import')\n"
        "connect, socket.socket.connect = socket.socket.connect, refuse\n"
        "file, *texts = sys.argv[1:]\n"
        "sys.argv = ['uwsgi', '--no-such-option', '--config-file', '/no/such/file']\n"
        "sys.stdout = io.StringIO()\n"
        "import cyborg.wsgi.api as module\n"
        "assert sys.stdout.getvalue() == ''\n"
        "sys.stdout = sys.__stdout__\n"
        "from oslo_config import cfg\n"
        "assert cfg.CONF._namespace is None\n"
        "socket.socket.connect = connect\n"
        "client = webtest.TestApp(module.application)\n"
        "for text in texts:\n"
        "    pathlib.Path(file).write_text(text)\n"
        "    answer = client.get('/', expect_errors=True)\n"
        "    print('ANSWER', answer.status_int, file=sys.stderr)\n"
        "assert 'x-openstack-request-id' in answer.headers, answer\n"
        "assert 'cyborg_http_requests_total' in client.get('/metrics').text\n"
    )
    (tmp_path / ".cyborg").mkdir()
    files = "[DEFAULT]\ntransport_url = fake://\n[api]\nport = many\n", "", "[api]\n"
    good = f"{files[0].replace('many', '1')}auth_strategy = noauth\nmetrics = true\n"
    good += f"api_paste_config = {SHIPPED}\n"
    good += "[database]\nconnection = sqlite:////nonexistent/cyborg.sqlite\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / ".cyborg" / "cyborg.conf"), *files, good],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    # On standard output threads write to the log meanwhile.
    answers = [line for line in done.stderr.splitlines() if line.startswith("ANSWER")]
    assert [line.split()[1] for line in answers] == ["503", "503", "503", "200"], done
    assert done.returncode == 0, done


def test_names_used_by_deployers_can_be_imported() -> None:
    for name in (
        "cyborg.wsgi.api:application",
        "cyborg.api.app:app_factory",
        "cyborg.api.middleware.auth_token:AuthTokenMiddleware",
    ):
        module, _, attribute = name.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_unusable_paste_file_is_named(make_conf: MakeConf, tmp_path: Path) -> None:
    path = tmp_path / "odd-paste.ini"
    path.write_text("[pipeline:main]\npipeline = nothing\n")
    conf = make_conf(f"[api]\napi_paste_config = {path}\n")
    with pytest.raises(exception.ConfigError, match=r"odd-paste\.ini"):
        app.load(conf)


@pytest.mark.parametrize(
    ("auth_type", "words"),
    [
        ("", r"\[keystone_authtoken\] auth_type is not set"),
        ("charm", r"\[keystone_authtoken\] cannot be used: .*charm"),
        ("password", r"\[keystone_authtoken\] cannot be used: .*auth_url"),
    ],
)
def test_unusable_keystone_account_is_refused(tmp_path: Path, auth_type: str, words: str) -> None:
    path = tmp_path / "cyborg.conf"
    path.write_text(f"[keystone_authtoken]\nauth_type = {auth_type}\n" if auth_type else "")
    conf = configuration.prepare(
        [], prog="cyborg-api", default_config_files=[str(path)], conf=cfg.ConfigOpts()
    )
    with pytest.raises(exception.ConfigError, match=words):
        auth_token.protect(heartbeat, conf)


@pytest.fixture
def serve(make_conf: MakeConf) -> Iterator[Callable[[str], HttpServer]]:
    """Serve ``hello`` on a free port, with the given options."""
    running: list[HttpServer] = []

    def start(text: str = "") -> HttpServer:
        server = HttpServer(heartbeat, make_conf(f"[api]\nport = 0\n{text}"))
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()
        server.wait()


def test_used_port_is_refused(make_conf: MakeConf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(exception.ConfigError, match=f"port = {port} cannot be listened on"):
            HttpServer(heartbeat, make_conf(f"[api]\nport = {port}\n"))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
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


def tls(certificate: tuple[Path, Path], *, ca: bool = False) -> str:
    cert, key = certificate
    text = f"enable_ssl_api = true\n[ssl]\ncert_file = {cert}\nkey_file = {key}\n"
    return text + (f"ca_file = {cert}\n" if ca else "")


def test_server_answers_and_requires_tls_and_client_certificates_as_configured(
    serve: Callable[..., HttpServer], certificate: tuple[Path, Path]
) -> None:
    assert _ask(serve(), None) == b"http"
    context = ssl.create_default_context(cafile=str(certificate[0]))
    assert _ask(serve(tls(certificate)), context) == b"https"
    guarded = serve(tls(certificate, ca=True))
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        _ask(guarded, context)
    context.load_cert_chain(*certificate)
    assert _ask(guarded, context) == b"https"


def _ask(server: HttpServer, context: ssl.SSLContext | None) -> bytes:
    secure = http.client.HTTPSConnection(*server.address, timeout=PATIENCE, context=context)
    connection = (
        secure if context else http.client.HTTPConnection(*server.address, timeout=PATIENCE)
    )
    with closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read()


def test_invalid_tls_settings_are_refused(make_conf: MakeConf) -> None:
    for more, word in (
        ("", "cert_file and key_file"),
        ("[ssl]\ncert_file = /no\nkey_file = /no\n", "/no"),
    ):
        with pytest.raises(exception.ConfigError, match=word):
            HttpServer(heartbeat, make_conf(f"[api]\nport = 0\nenable_ssl_api = true\n{more}"))
