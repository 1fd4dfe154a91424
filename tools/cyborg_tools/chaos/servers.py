# SPDX-License-Identifier: Apache-2.0
"""A separate MariaDB and RabbitMQ on free ports, which faults kill and start again."""

import os
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

import amqp
import pymysql

from cyborg import exception, service
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.processes import Program

#: Seconds within which a server must answer; RabbitMQ takes ten on a busy machine.
_PATIENCE = 60.0
_HERE = "127.0.0.1"


class Server(ABC):
    """One server and its data below ``directory``, which survive kill and stop."""

    #: What people call it.
    title: str

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._program: Program | None = None
        directory.mkdir()

    @abstractmethod
    def answers(self) -> bool:
        """Whether a client can log in."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._directory)}

    def begin(self) -> None:
        """Start it, without waiting for it."""
        self._program = Program(
            self._command(), log=self._directory / "output", environment=self._environment
        )

    def wait(self) -> None:
        """Wait until it answers; raises ConfigError with its last words when it does not."""
        program = self._running
        service.wait_until(lambda: not program.running or self.answers(), timeout=_PATIENCE)
        if not self.answers():
            last = "\n".join(program.output.splitlines()[-10:])
            raise exception.ConfigError(reason=f"{self.title} does not start:\n{last}")

    def kill(self) -> None:
        """End it as a crash would."""
        self._running.kill()

    def stop(self) -> None:
        """Let it end orderly; stopping twice, or one that never began, does no harm."""
        if self._program is not None:
            self._program.stop(_PATIENCE)

    def close(self) -> None:
        """Stop it for good."""
        self.stop()

    @property
    def _running(self) -> Program:
        assert self._program is not None, "it was not begun"
        return self._program


class MariaDb(Server):
    """``mariadbd``; root needs no password, and only this machine can reach it."""

    title = "MariaDB"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._daemon = needed("mariadbd", "mariadb-server")
        installer = needed("mariadb-install-db", "mariadb-server")
        made = subprocess.run(
            [
                *(installer, "--no-defaults", f"--datadir={self._data}", "--skip-test-db"),
                *("--auth-root-authentication-method=normal", *self._as_user),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if made.returncode:
            last = "\n".join(made.stdout.splitlines()[-10:])
            raise exception.ConfigError(reason=f"mariadb-install-db fails:\n{last}")

    @property
    def url(self) -> str:
        """That of the database, for the service."""
        return f"mysql+pymysql://root@{_HERE}:{self.port}/cyborg"

    def make_database(self) -> None:
        """Make the database; it must answer."""
        with pymysql.connect(host=_HERE, port=self.port, user="root") as admin:
            admin.cursor().execute("CREATE DATABASE cyborg CHARACTER SET utf8mb4")

    def answers(self) -> bool:
        """See Server."""
        try:
            pymysql.connect(host=_HERE, port=self.port, user="root", connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True

    def _command(self) -> list[str]:
        return [
            *(self._daemon, "--no-defaults", f"--datadir={self._data}", f"--port={self.port}"),
            *(f"--bind-address={_HERE}", f"--socket={self._directory / 'socket'}"),
            *(f"--pid-file={self._directory / 'pid'}", "--innodb-buffer-pool-size=64M"),
            *self._as_user,
        ]

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _as_user(self) -> list[str]:
        # It refuses to run as root unless told so.
        return ["--user=root"] if os.geteuid() == 0 else []


class RabbitMq(Server):
    """``rabbitmq-server`` with an ``epmd`` of its own: one that it starts itself would stay."""

    title = "RabbitMQ"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._daemon = _rabbitmq_server()
        self._epmd_port, self._distribution_port = free_port(), free_port()
        self._epmd = Program(
            [needed("epmd", "erlang-base"), "-port", str(self._epmd_port), "-address", _HERE],
            log=directory / "epmd",
            environment=super()._environment,
        )

    @property
    def url(self) -> str:
        """That of the bus, for the service."""
        return f"rabbit://guest:guest@{_HERE}:{self.port}/"

    def answers(self) -> bool:
        """See Server."""
        connection = amqp.Connection(f"{_HERE}:{self.port}", connect_timeout=2)
        try:
            connection.connect()
        except (OSError, amqp.AMQPError):
            return False
        connection.close()
        return True

    def control(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` on this server; raises RuntimeError when it fails."""
        program = str(Path(self._daemon).with_name("rabbitmqctl"))
        return broker.rabbitmqctl(*arguments, program=program, environment=self._environment)

    def close(self) -> None:
        """See Server; the epmd goes with it."""
        try:
            super().close()
        finally:
            self._epmd.kill()

    def _command(self) -> list[str]:
        return [self._daemon]

    @property
    def _environment(self) -> dict[str, str]:
        own = self._directory
        return super()._environment | {
            "ERL_EPMD_ADDRESS": _HERE,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "cyborg-chaos@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": _HERE,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": f"{own}/mnesia",
            "RABBITMQ_LOG_BASE": f"{own}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{own}/pid",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{own}/generated",
            # None of these is there: nothing of this machine's own server is read.
            "RABBITMQ_CONF_ENV_FILE": f"{own}/environment",
            "RABBITMQ_CONFIG_FILE": f"{own}/rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{own}/advanced",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{own}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface "
            "{127,0,0,1}",
        }


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as one:
        one.bind((_HERE, 0))
        port: int = one.getsockname()[1]
        return port


def needed(program: str, package: str) -> str:
    """The path of a program; raises ConfigError naming the package it is in."""
    found = shutil.which(program, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    if found is None:
        raise exception.ConfigError(
            reason=f"The program {program} is needed and not installed; on Debian and Ubuntu it "
            f"is in the package {package}."
        )
    return found


def _rabbitmq_server() -> str:
    """RabbitMQ's own script: the one on the PATH of distributions changes the user."""
    found = needed("rabbitmq-server", "rabbitmq-server")
    own = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return str(own) if own.exists() else found
