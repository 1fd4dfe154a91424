# SPDX-License-Identifier: Apache-2.0
"""The walk where everything uses TLS and all messages are signed, and what is refused there."""

import re
import socket
import ssl
from urllib.parse import urlsplit

import amqp
import pymysql
import requests

from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.tests.fixtures.processes import Options
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg_tools.quickstart.clients import require
from cyborg_tools.walkthrough.operator import Operator
from cyborg_tools.walkthrough.secured import SecuredServers
from cyborg_tools.walkthrough.walk import Walk

_HERE = "127.0.0.1"
#: A host whose agent has no key.
_STRANGER = "compute-9"
_REFUSED = r"(?:Message \w+ to|Reply of) \S+ refused: .*"
_UNSIGNED = rf"Message heartbeat to \S+ refused: it has no signature \(sender '{AGENT}@{_STRANGER}'"
#: Refused in the walk: that host, and a request to an agent from before the restart of the agent,
#: which gets no signed reply and which the conductor repeats.
_BY_DESIGN = (f"@{_STRANGER}'", "it may have been received before", f"Reply of {AGENT}.")


class SecuredWalk(Walk):
    """The same operator, whose commands verify the API and Keystone."""

    def play(self) -> None:
        """See Walk; first what must be refused, and in the end that nobody else was refused."""
        servers = self.environment.secured
        assert servers is not None
        self._refuses_plain_text(servers)
        self._refuses_clients_without_the_authority(servers)
        self._refuses_unsigned_messages()
        super().play()
        self._was_signed()

    def _web_servers(self, servers: SecuredServers) -> dict[str, str]:
        """The services that speak HTTP, by what people call them."""
        return {
            "API": self.environment.url,
            "Keystone": servers.keystone.url,
            "Placement": self.environment.placement_url,
            "Nova": self.environment.nova.url,
        }

    def _refuses_plain_text(self, servers: SecuredServers) -> None:
        self.screen.step("Connections without TLS are refused by every server")
        for name, url in self._web_servers(servers).items():
            require(url.startswith("https://"), f"{name} is at {url}")
            plain = url.replace("https://", "http://")
            try:
                answer = requests.get(plain, timeout=PATIENCE)
            except requests.ConnectionError as refusal:
                self._show(name, refusal)
            else:
                require(False, f"{name} answers {answer.status_code} at {plain}")
        try:
            pymysql.connect(
                host=_HERE,
                port=servers.maria.port,
                user="root",
                ssl_disabled=True,
                connect_timeout=PATIENCE,
            ).close()
        except pymysql.MySQLError as refusal:
            # With TLS the same account needs no password.
            require(servers.maria.answers(), "MariaDB refuses connections over TLS, too")
            self._show("MariaDB", refusal)
        else:
            require(False, "MariaDB accepts a connection without TLS")
        connection = amqp.Connection(
            f"{_HERE}:{servers.rabbit.port}", connect_timeout=PATIENCE, read_timeout=PATIENCE
        )
        try:
            connection.connect()
        except (OSError, amqp.AMQPError) as refusal:
            self._show("RabbitMQ", refusal)
        else:
            require(False, "RabbitMQ accepts a connection without TLS")
        self.screen.ok("No server has a port at which it answers plain text.")

    def _refuses_clients_without_the_authority(self, servers: SecuredServers) -> None:
        self.screen.step("Clients that do not know the authority connect to no server")
        ports = {name: urlsplit(url).port or 0 for name, url in self._web_servers(servers).items()}
        ports |= {"RabbitMQ": servers.rabbit.port}
        for name, port in ports.items():
            with socket.create_connection((_HERE, port), timeout=PATIENCE) as plain:
                try:
                    ssl.create_default_context().wrap_socket(plain, server_hostname=_HERE)
                except ssl.SSLCertVerificationError as refusal:
                    self._show(name, refusal)
                else:
                    require(False, f"{name} has a certificate of an authority that all know")
        try:
            pymysql.connect(
                host=_HERE,
                port=servers.maria.port,
                user="root",
                ssl=ssl.create_default_context(),
                connect_timeout=PATIENCE,
            ).close()
        except pymysql.MySQLError as refusal:
            require("CERTIFICATE_VERIFY_FAILED" in str(refusal), f"another reason: {refusal}")
            self._show("MariaDB", refusal)
        else:
            require(False, "MariaDB has a certificate of an authority that all know")
        unaware = {name: value for name, value in self.variables.items() if name != "OS_CACERT"}
        Operator(unaware, self.screen).is_refused("service-list", "certificate verify failed")
        self.screen.ok("Each of them refuses the certificate, and so does the command.")

    def _refuses_unsigned_messages(self) -> None:
        self.screen.step(
            f"A process without keys ({AGENT} on {_STRANGER}) is refused by conductors"
        )
        conductor = self.environment.daemons[CONDUCTOR]
        own: Options = {
            "DEFAULT": {
                "host": _STRANGER,
                "state_path": self.environment.directory / _STRANGER,
                "message_signing": "off",
            },
            "agent": {"enabled_drivers": "fake_driver"},
        }
        stranger = self.environment.hosts.begin(AGENT, own)
        try:
            self.until(
                lambda: re.search(_UNSIGNED, conductor.output),
                "the conductor has not logged the refusal",
            )
        finally:
            stranger.kill()
        self.screen.fact("log", str(re.findall(_REFUSED, conductor.output)[0]))
        hosts = {one["host"] for one in self.asks("service-list --kind process -c host")}
        require(_STRANGER not in hosts, f"{_STRANGER} has become a host")
        self.screen.ok("The conductor has logged it, and the service has no such host.")

    def _was_signed(self) -> None:
        self.screen.step("All messages of the walk were signed")
        for name, daemon in self.environment.daemons.items():
            for line in re.findall(_REFUSED, daemon.output):
                require(any(one in line for one in _BY_DESIGN), f"{name} refused: {line}")
        self.screen.ok("Nobody but the process without keys was refused.")

    def _show(self, name: str, refusal: Exception) -> None:
        self.screen.fact(name, " ".join(str(refusal).split())[-200:])
