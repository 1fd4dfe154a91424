# SPDX-License-Identifier: Apache-2.0
"""The real Keystone on a SQLite file, in a child process, with the accounts that tests need.

A process of its own, because Keystone keeps everything in the global configuration. Users,
projects and the catalogue are made over its REST API; the roles (admin, manager, member, reader,
service) and what they imply are those of its own bootstrap.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import v3
from keystoneauth1.session import Session

from cyborg.testing.loopback import Loopback

_REGION = "RegionOne"
_DOMAIN = "default"
# Few rounds: tests need no protection against guessing. Without a cache each request opens a score
# of database connections.
_CONF = """\
[DEFAULT]
log_file = {directory}/keystone.log
[database]
connection = sqlite:///{directory}/keystone.sqlite
sqlite_synchronous = false
[token]
provider = fernet
expiration = {token_seconds}
[fernet_tokens]
key_repository = {directory}/fernet-keys
[credential]
key_repository = {directory}/credential-keys
[cache]
backend = oslo_cache.dict
[identity]
password_hash_rounds = 4
"""


@dataclass(frozen=True)
class Account:
    """A user with the project that its tokens are for; both in the default domain."""

    user: str
    password: str
    project: str

    def options(self, url: str) -> dict[str, str]:
        """The options by which a configuration group of keystoneauth becomes this account."""
        return {
            "auth_type": "password",
            "auth_url": url,
            "username": self.user,
            "password": self.password,
            "user_domain_id": _DOMAIN,
            "project_name": self.project,
            "project_domain_id": _DOMAIN,
        }


ADMIN = Account("admin", "admin-secret", "admin")


class KeystoneService:
    """A context manager, or start and stop; what was made survives in ``directory``.

    ``token_seconds`` is how long tokens live.
    """

    def __init__(self, directory: Path, token_seconds: int = 3600) -> None:
        self._directory = directory.resolve()
        self._token_seconds = token_seconds
        self._child: subprocess.Popen[str] | None = None
        self._base = ""
        self._administrator = Session()

    @property
    def url(self) -> str:
        """The identity endpoint, version included; known once it was started."""
        return f"{self._base}/v3"

    def start(self) -> None:
        """Prepare the database if there is none, and answer from now on (after some seconds).

        Raises RuntimeError, naming the log, when Keystone does not come up.
        """
        conf = self._directory / "keystone.conf"
        conf.write_text(_CONF.format(directory=self._directory, token_seconds=self._token_seconds))
        if not (self._directory / "keystone.sqlite").exists():
            self._prepare(conf)
        with self._log() as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "cyborg.testing.keystone"],
                env={**os.environ, "OS_KEYSTONE_CONFIG_FILES": str(conf)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._child.stdout is not None
        self._base = self._child.stdout.readline().strip()
        if not self._base:
            self.stop()
            raise RuntimeError(f"Keystone did not start, see {self._directory}/child.log")
        self._administrator = self.session(ADMIN)
        self.register("identity", self.url)

    def stop(self) -> None:
        """End the child process; stopping twice does no harm."""
        if self._child is None:
            return
        self._child.terminate()
        self._child.communicate()
        self._child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def register(self, kind: str, url: str) -> None:
        """Put a service into the catalogue, or move it: one address for all interfaces."""
        found = self._call("GET", f"/services?type={kind}")["services"]
        service = found[0] if found else self._make("service", type=kind, name=kind)
        for old in self._call("GET", f"/endpoints?service_id={service['id']}")["endpoints"]:
            self._call("DELETE", f"/endpoints/{old['id']}")
        for interface in ("public", "internal", "admin"):
            self._make(
                "endpoint",
                service_id=service["id"],
                interface=interface,
                url=url,
                region_id=_REGION,
            )

    def make_account(self, user: str, project: str, *roles: str) -> Account:
        """A user who has these roles in a project; calling twice does no harm.

        User, project and roles are made if they are not there.
        """
        account = Account(user, f"{user}-secret", project)
        user_id = self._ensure("user", user, password=account.password)
        project_id = self._ensure("project", project)
        for role in roles:
            self._call("PUT", f"/projects/{project_id}/users/{user_id}/roles/{self._role(role)}")
        return account

    def grant_on_domain(self, account: Account, role: str) -> None:
        """Give an account's user a role on the default domain as well."""
        user_id = self._ensure("user", account.user)
        self._call("PUT", f"/domains/{_DOMAIN}/users/{user_id}/roles/{self._role(role)}")

    def project_id(self, project: str) -> str:
        """The id of a project that exists."""
        return str(self._call("GET", f"/projects?name={project}")["projects"][0]["id"])

    def session(self, account: Account) -> Session:
        """A new session whose tokens are for the account's project."""
        return self._session(account, project_name=account.project, project_domain_id=_DOMAIN)

    def token(self, account: Account) -> str:
        """A new token for the account's project."""
        return str(self.session(account).get_token())

    def system_token(self, account: Account) -> str:
        """A new token for the whole system; of the standard accounts only ADMIN may."""
        return str(self._session(account, system_scope="all").get_token())

    def domain_token(self, account: Account) -> str:
        """A new token for the default domain (see ``grant_on_domain``)."""
        return str(self._session(account, domain_id=_DOMAIN).get_token())

    def _session(self, account: Account, **scope: Any) -> Session:
        plugin = v3.Password(
            self.url,
            username=account.user,
            password=account.password,
            user_domain_id=_DOMAIN,
            **scope,
        )
        return Session(auth=plugin)

    def _ensure(self, noun: str, name: str, **properties: str) -> str:
        found = self._call("GET", f"/{noun}s?name={name}")[f"{noun}s"]
        one = found[0] if found else self._make(noun, name=name, domain_id=_DOMAIN, **properties)
        return str(one["id"])

    def _role(self, name: str) -> str:
        """The id of a role; those of a domain would be in no token."""
        found = self._call("GET", f"/roles?name={name}")["roles"]
        return str((found[0] if found else self._make("role", name=name))["id"])

    def _make(self, noun: str, **properties: str) -> dict[str, Any]:
        made: dict[str, Any] = self._call("POST", f"/{noun}s", {noun: properties})[noun]
        return made

    def _call(self, method: str, path: str, body: object = None) -> Any:
        """One request as administrator; raises keystoneauth's HttpError for what goes wrong."""
        adapter = Adapter(self._administrator, endpoint_override=self.url)
        answer = adapter.request(path, method, **({} if body is None else {"json": body}))
        return answer.json() if answer.content else None

    def _prepare(self, conf: Path) -> None:
        keys = ["--keystone-user", str(os.getuid()), "--keystone-group", str(os.getgid())]
        for command in (
            ["db_sync"],
            ["fernet_setup", *keys],
            ["credential_setup", *keys],
            ["bootstrap", "--bootstrap-password", ADMIN.password, "--bootstrap-region-id", _REGION],
        ):
            with self._log() as log:
                subprocess.run(
                    [sys.executable, "-c", _MANAGE, "--config-file", str(conf), *command],
                    check=True,
                    stdout=log,
                    stderr=log,
                )

    def _log(self) -> IO[str]:
        return (self._directory / "child.log").open("a")


_MANAGE = "import sys; from keystone.cmd.manage import main; sys.exit(main())"


def _serve() -> None:
    """The child: tell the address on standard output, and answer until the parent ends."""
    from keystone.wsgi.api import application

    with Loopback(application, one_at_a_time=True) as loopback:
        print(loopback.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve()
