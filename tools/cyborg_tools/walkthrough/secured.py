# SPDX-License-Identifier: Apache-2.0
"""Servers that accept TLS alone, with certificates of a new authority, and keys of all processes.

MariaDB, RabbitMQ and Keystone are processes that exist for one run. The options of servers and
daemons are the blocks of the page "TLS between all services", with other addresses and paths.
"""

from collections.abc import Mapping
from concurrent.futures import wait
from configparser import ConfigParser
from contextlib import ExitStack
from pathlib import Path

from cyborg.rpc.threads import in_thread
from cyborg.tests.fixtures.authority import Authority
from cyborg.tests.fixtures.keystone import ADMIN, Account, KeystoneService
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.deployed.page import filled
from cyborg_tools.chaos.servers import MariaDb, RabbitMq, started
from cyborg_tools.program import Started
from cyborg_tools.walkthrough.keys import Keys

_PAGE = "tls"
_CA, _KEYS = "/etc/cyborg/tls/ca.pem", "/etc/cyborg/signing-keys.json"
_KEYSTONE = "https://controller:5000"
#: The project of the servers.
PROJECT = "demo"


class SecuredServers(Started):
    """The servers, and what daemons and clients need to use them; ``hosts`` have an agent each."""

    def __init__(self, directory: Path, hosts: tuple[str, ...]) -> None:
        directory.mkdir()
        self.directory = directory
        #: The message signing keys.
        self.keys = Keys(directory, hosts)
        self._authority = Authority(directory / "tls")
        self.ca = self._authority.ca
        #: Of the servers that this process has.
        self.certificate = self._authority.issue("peers")
        self._api = self._authority.issue("api")

    def start(self, endings: ExitStack) -> None:
        """See Started; all of them start at the same time."""
        self.rabbit = RabbitMq(self.directory / "rabbitmq", self._rabbit_settings(), ca=self.ca)
        endings.callback(self.rabbit.close)
        self.rabbit.begin()
        place = self.directory / "keystone"
        place.mkdir()
        self.keystone = KeystoneService(place, certificate=self._authority.issue("keystone"))
        starting = in_thread(self.keystone.start, name="keystone")
        endings.callback(self.keystone.stop)
        # Else a Keystone that is just being started would stay.
        endings.callback(wait, [starting])
        self.maria = MariaDb(self.directory / "mariadb", self._maria_options(), ca=self.ca)
        self.maria.begin()
        endings.callback(self.maria.stop)
        self.keys.make()
        self.maria.wait()
        self.maria.make_database()
        started(starting)
        self._make_accounts()
        self.rabbit.wait()

    def controllers(self) -> dict[str, dict[str, object]]:
        """The options of API and conductor."""
        options = self._block(
            "tls-controllers",
            {
                "cyborg-conductor:PASSWORD@controller:5671/cyborg": self._broker,
                "mysql+pymysql://cyborg:PASSWORD@controller/cyborg": self.maria.url,
                "/etc/cyborg/tls/api.pem": self._api.cert,
                "/etc/cyborg/tls/api.key": self._api.key,
                _KEYS: self.keys.file(),
            },
        )
        for group in ("keystone_authtoken", "nova", "placement"):
            options[group] = {**self._account.options(""), **options[group]}
        options["keystone_authtoken"]["service_type"] = "accelerator"
        options["api"]["compute_users"] = "nova"
        return options

    def agents(self) -> dict[str, dict[str, object]]:
        """The options that the agents of all hosts have."""
        options = self._block(
            "tls-agents", {"cyborg-agent:PASSWORD@controller:5671/cyborg": self._broker}
        )
        del options["DEFAULT"]["message_signing_key_file"]
        for group in ("placement", "glance"):
            options[group] = {**self._agent.options(""), **options[group]}
        return options

    def join(self, placement: PlacementService, nova: str, endings: ExitStack) -> str:
        """Ask for tokens at Placement, and put it and Nova into the catalogue; Placement's URL."""
        place = self.directory / "placement"
        place.mkdir()
        account = self.keystone.make_account("placement", "service", "service")
        options = {**account.options(self.keystone.url), "cafile": str(self.ca)}
        url = endings.enter_context(placement.behind_keystone(place, options)).url
        self.keystone.register("placement", url)
        self.keystone.register("compute", nova)
        return url

    def operator(self) -> dict[str, str]:
        """The variables of an operator's shell; a command gets the API from the catalogue."""
        text = filled(_PAGE, "tls-clients", {_KEYSTONE: self.keystone.url, _CA: self.ca})
        lines = [line.removeprefix("export ") for line in text.splitlines()]
        account = ADMIN.options("")
        names = ("username", "password", "project_name", "user_domain_id", "project_domain_id")
        return {
            **{f"OS_{name.upper()}": account[name] for name in names},
            **dict(line.split("=", 1) for line in lines),
        }

    def tokens(self) -> tuple[str, str]:
        """A token of a user of the project, and one of Nova for its service."""
        user = self.keystone.make_account("demo", PROJECT, "member")
        nova = self.keystone.make_account("nova", "service", "service")
        return self.keystone.token(user), self.keystone.token(nova)

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the servers that are processes of their own."""
        return {
            **{one.title: one.pid for one in (self.maria, self.rabbit)},
            "epmd": self.rabbit.epmd_pid,
            "Keystone": self.keystone.pid,
        }

    @property
    def _broker(self) -> str:
        return self.rabbit.url.removeprefix("rabbit://")

    def _make_accounts(self) -> None:
        self._account = self.keystone.make_account("cyborg", "service", "service", "admin")
        self._agent: Account = self.keystone.make_account("cyborg-agent", "service", "service")

    def _maria_options(self) -> list[str]:
        own = self._authority.issue("mariadb")
        values = {
            "/etc/mysql/tls/ca.pem": own.ca,
            "/etc/mysql/tls/mariadb.pem": own.cert,
            "/etc/mysql/tls/mariadb.key": own.key,
        }
        (options,) = _parsed(filled(_PAGE, "tls-mariadb", values)).values()
        return [f"--{name}={value}" for name, value in options.items()]

    def _rabbit_settings(self) -> str:
        own = self._authority.issue("rabbitmq")
        values = {
            "/etc/rabbitmq/tls/ca.pem": own.ca,
            "/etc/rabbitmq/tls/rabbitmq.pem": own.cert,
            "/etc/rabbitmq/tls/rabbitmq.key": own.key,
            "ssl.default = 5671": "ssl.1 = 127.0.0.1:{port}",
        }
        return filled(_PAGE, "tls-rabbitmq", values)

    def _block(self, name: str, values: Mapping[str, object]) -> dict[str, dict[str, object]]:
        common = {_CA: self.ca, _KEYSTONE: self.keystone.url}
        return _parsed(filled(_PAGE, name, {**values, **common}))


def _parsed(text: str) -> dict[str, dict[str, object]]:
    parser = ConfigParser(interpolation=None, default_section="")
    parser.read_string(text)
    return {group: dict(parser[group]) for group in parser.sections()}
