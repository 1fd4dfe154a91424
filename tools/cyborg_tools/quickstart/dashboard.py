# SPDX-License-Identifier: Apache-2.0
"""Keystone with the accounts of the people, and Horizon with the panels of this checkout."""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keystoneauth1.exceptions import ClientException

from cyborg import exception
from cyborg.tests.fixtures.keystone import Account, KeystoneService
from cyborg_tools.dashboard.horizon import Horizon, NotPrepared
from cyborg_tools.quickstart.clients import Tokens
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.quickstart.state import ADVICE, State

#: The users with their projects and roles; Keystone's own bootstrap makes the first.
ADMIN: Final = "admin"
MEMBER: Final = "member"
_USERS: Final[Mapping[str, tuple[str, str]]] = {
    ADMIN: ("admin", "admin"),
    MEMBER: ("demo", "member"),
    "cyborg": ("service", "service"),
    "nova": ("service", "service"),
}
_ACCOUNTS: Final = "accounts.json"


@dataclass(frozen=True)
class Identity:
    """Keystone, running, and its accounts by the name of the user."""

    keystone: KeystoneService
    accounts: Mapping[str, Account]

    @property
    def authentication(self) -> Mapping[str, Mapping[str, str]]:
        """The options by which the service asks this Keystone."""
        return self.keystone.authentication(self.accounts["cyborg"])

    def tokens(self) -> Tokens:
        """Return new tokens for the walk."""
        names = (ADMIN, MEMBER, "nova")
        return Tokens(*(self.keystone.token(self.accounts[name]) for name in names))


@contextmanager
def identified(state: State, screen: Screen) -> Iterator[Identity]:
    """Run Keystone with its accounts; raises ConfigError if it does not come up.

    The state keeps the passwords, which are made at the first start.
    """
    place = state.place("keystone")
    accounts = _accounts(place / _ACCOUNTS)
    keystone = KeystoneService(place, administrator=accounts[ADMIN])
    try:
        keystone.start()
        for name, (project, role) in _USERS.items():
            keystone.make_account(name, project, role, password=accounts[name].password)
    except (RuntimeError, ClientException) as error:
        keystone.stop()
        raise exception.ConfigError(reason=f"Keystone: {error}. {ADVICE}") from error
    try:
        screen.fact("Keystone", f"{keystone.url}, the real one")
        yield Identity(keystone, accounts)
    finally:
        keystone.stop()


@contextmanager
def shown(state: State, identity: Identity, screen: Screen) -> Iterator[str]:
    """Run Horizon, and give its address; raises ConfigError if it does not come up."""
    screen.say("Preparing Horizon; the first time it makes its static files, which takes a minute.")
    horizon = Horizon(state.place("horizon"), identity.keystone.url)
    try:
        horizon.start()
    except NotPrepared as error:
        raise exception.ConfigError(reason=f"Horizon: {error}") from error
    try:
        yield f"{horizon.url}/"
    finally:
        horizon.stop()


def invitation(address: str, identity: Identity) -> list[str]:
    """Return the lines that say where the dashboard is, and who may sign in."""
    rows = [
        f"  {name:<8}{identity.accounts[name].password}   {sees}"
        for name, sees in (
            (ADMIN, "all hosts: Admin > Accelerators"),
            (MEMBER, "a project: Project > Accelerators"),
        )
    ]
    return [f"Dashboard: {address}", *rows]


def _accounts(file: Path) -> dict[str, Account]:
    """Return the accounts with the passwords of a file, which is made if there is none."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(json.dumps({name: secrets.token_urlsafe(12) for name in _USERS}))
    passwords = json.loads(file.read_text())
    return {
        name: Account(name, passwords[name], project) for name, (project, _role) in _USERS.items()
    }
