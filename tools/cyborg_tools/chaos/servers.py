# SPDX-License-Identifier: Apache-2.0
"""A separate MariaDB and RabbitMQ on reserved ports, which can be killed and started again.

With a certificate they accept connections over TLS alone; the options for that are those of the
installation guide.
"""

import os
import shutil
import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import amqp
import pymysql

from cyborg import exception, service
from cyborg.tests.fixtures import broker, ports
from cyborg.tests.fixtures.processes import Program
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.program import BrokenEnvironment

_HERE = "127.0.0.1"
_PATH = os.environ.get("PATH", os.defpath)


class Server(ABC):
    """One server and its data below ``directory``, which survive kill and stop."""

    #: What people call it.
    title: str
    _command: list[str]
    _program: Program

    def __init__(self, directory: Path) -> None:
        self.port = ports.reserved()
        self._directory = directory
        self._environment = {"PATH": _PATH, "HOME": str(directory)}
        directory.mkdir()

    @property
    def pid(self) -> int:
        """The process id; known once it was begun."""
        return self._program.pid

    @abstractmethod
    def answers(self) -> bool:
        """Whether a client can log in."""

    def begin(self) -> None:
        """Start it, without waiting for it."""
        log = self._directory / "output"
        self._program = Program(self._command, log=log, environment=self._environment)

    def wait(self) -> None:
        """Wait until it answers; raises BrokenEnvironment with its last words if it does not."""
        program = self._program
        service.wait_until(lambda: not program.running or self.answers(), timeout=PATIENCE)
        if not self.answers():
            raise _failed(f"{self.title} does not start", program.output)

    def kill(self) -> None:
        """End it as a crash would."""
        self._program.kill()

    def stop(self) -> None:
        """Let it end orderly; stopping twice does no harm."""
        self._program.stop()


class MariaDb(Server):
    """``mariadbd``; root needs no password, and only this machine can reach it.

    ``options`` are more options of the daemon; with ``ca``, clients verify it over TLS.
    """

    title = "MariaDB"

    def __init__(
        self, directory: Path, options: Sequence[str] = (), *, ca: Path | None = None
    ) -> None:
        super().__init__(directory)
        daemon = needed("mariadbd", "mariadb-server")
        installer = needed("mariadb-install-db", "mariadb-server")
        # It refuses to run as root unless told so.
        as_user = ["--user=root"] if os.geteuid() == 0 else []
        # From a directory that servers share, it would remove the temporary tables of the others.
        temporary = directory / "tmp"
        temporary.mkdir()
        common = ["--no-defaults", f"--datadir={directory / 'data'}", f"--tmpdir={temporary}"]
        common += as_user
        made = subprocess.run(
            [installer, *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if made.returncode:
            raise _failed("mariadb-install-db fails", made.stdout)
        self._command = [
            *(daemon, *common, f"--port={self.port}", f"--bind-address={_HERE}"),
            *(f"--socket={directory / 'socket'}", f"--pid-file={directory / 'pid'}"),
            "--innodb-buffer-pool-size=64M",
            *options,
        ]
        self._ssl = {} if ca is None else {"ssl": {"ca": str(ca)}}
        self.url = f"mysql+pymysql://root@{_HERE}:{self.port}/cyborg"

    def make_database(self) -> None:
        with pymysql.connect(host=_HERE, port=self.port, user="root", **self._ssl) as admin:
            admin.cursor().execute("CREATE DATABASE cyborg CHARACTER SET utf8mb4")

    def answers(self) -> bool:
        place = {"host": _HERE, "port": self.port, "user": "root"}
        try:
            pymysql.connect(**place, connect_timeout=2, **self._ssl).close()
        except pymysql.MySQLError:
            return False
        return True


class RabbitMq(Server):
    """``rabbitmq-server`` with an ``epmd`` of its own: one that it starts itself would stay.

    ``settings`` are lines of its configuration, which name ``{port}`` where it listens; with
    ``ca``, clients verify it over TLS. Without them it accepts plain connections. With
    ``management_port`` it has the management plugin, and ``rabbitmqadmin`` finds it there.
    """

    title = "RabbitMQ"

    def __init__(
        self,
        directory: Path,
        settings: str | None = None,
        *,
        ca: Path | None = None,
        management_port: int | None = None,
    ) -> None:
        super().__init__(directory)
        self._ssl: dict[str, object] = {}
        if ca is not None:
            verified = {"ca_certs": str(ca), "cert_reqs": ssl.CERT_REQUIRED}
            self._ssl["ssl"] = {**verified, "server_hostname": _HERE}
        daemon = needed("rabbitmq-server", "rabbitmq-server")
        # RabbitMQ's own script: the one on the PATH of distributions changes the user.
        own = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        self._command = [str(own) if own.exists() else daemon]
        self.url = f"rabbit://guest:guest@{_HERE}:{self.port}/"
        epmd_port = str(ports.reserved())
        self._epmd = Program(
            [needed("epmd", "erlang-base"), "-port", epmd_port, "-address", _HERE],
            log=directory / "epmd",
            environment=self._environment,
        )
        self._environment |= {
            "ERL_EPMD_ADDRESS": _HERE,
            "ERL_EPMD_PORT": epmd_port,
            "RABBITMQ_NODENAME": "cyborg-chaos@localhost",
            "RABBITMQ_DIST_PORT": str(ports.reserved()),
            "RABBITMQ_MNESIA_BASE": f"{directory}/mnesia",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{directory}/pid",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{directory}/generated",
            # Nothing of this machine's own server is read.
            "RABBITMQ_CONF_ENV_FILE": f"{directory}/environment",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{directory}/advanced",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface "
            "{127,0,0,1}",
        }
        lines = settings or "listeners.tcp.1 = 127.0.0.1:{port}\n"
        text = lines.replace("{port}", str(self.port))
        if management_port is not None:
            text += f"management.tcp.ip = {_HERE}\nmanagement.tcp.port = {management_port}\n"
            (directory / "plugins").write_text("[rabbitmq_management].\n")
            admin = f"[default]\nhostname = {_HERE}\nport = {management_port}\n"
            (directory / ".rabbitmqadmin.conf").write_text(admin)
        (directory / "rabbitmq.conf").write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the commands of RabbitMQ reach this server."""
        return {**self._environment, "PATH": f"{Path(self._command[0]).parent}:{_PATH}"}

    @property
    def epmd_pid(self) -> int:
        """The process id of its epmd."""
        return self._epmd.pid

    def answers(self) -> bool:
        connection = amqp.Connection(f"{_HERE}:{self.port}", connect_timeout=2, **self._ssl)
        try:
            connection.connect()
        except (OSError, amqp.AMQPError):
            return False
        connection.close()
        return True

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` on this server; raises RuntimeError when it fails."""
        program = str(Path(self._command[0]).with_name("rabbitmqctl"))
        return broker.rabbitmqctl(*arguments, program=program, environment=self._environment)

    def close(self) -> None:
        """Stop it for good; the epmd goes with it."""
        try:
            self.stop()
        finally:
            self._epmd.kill()


def needed(program: str, package: str) -> str:
    """The path of a program; raises ConfigError naming the package it is in."""
    path = shutil.which(program, path=f"{_PATH}:/usr/sbin:/sbin")
    if path is None:
        raise exception.ConfigError(
            reason=f"The program {program} is needed and not installed; on Debian and Ubuntu it "
            f"is in the package {package}."
        )
    return path


def started(keystone: Future[None]) -> None:
    """Wait for a Keystone that another thread starts; raises BrokenEnvironment if it does not."""
    try:
        keystone.result()
    except (RuntimeError, subprocess.SubprocessError) as fault:
        raise BrokenEnvironment(reason=f"Keystone does not start: {fault}") from fault


def _failed(what: str, output: str) -> BrokenEnvironment:
    last = "\n".join(output.splitlines()[-10:])
    return BrokenEnvironment(reason=f"{what}:\n{last}")
