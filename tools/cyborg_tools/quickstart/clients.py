# SPDX-License-Identifier: Apache-2.0
"""Clients of the services that the walk uses; an unexpected response fails its step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import requests

from cyborg.model.device import Deployable
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.accelerators import AcceleratorClient, Exchange
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN

#: Nova 34 requests allocation candidates with at least this microversion.
MICROVERSION = "placement 1.36"

#: Timeout, in seconds, for what the agent and the conductor do in the background. A busy machine
#: needs less.
PATIENCE = 120.0

#: Receives the name of the service and the exchange with it.
Listener = Callable[[str, Exchange], object]


class StepFailed(Exception):
    """A step of the walk failed; the message says what was found instead."""


def require(holds: object, otherwise: str) -> None:
    """Raise StepFailed with the sentence ``otherwise`` unless it holds."""
    if not holds:
        raise StepFailed(otherwise)


@dataclass(frozen=True)
class Tokens:
    """Keystone's tokens of an operator, of a user who boots a server, and of Nova itself."""

    operator: str
    user: str
    nova: str


@dataclass(frozen=True)
class Scenario:
    """The services of the walk, and the accelerator that it requests.

    ``url`` is that of the REST API, without a version. ``units`` counts the attach handles behind
    a provider by their state in the database. ``tokens`` is None without Keystone.
    """

    url: str
    placement_url: str
    nova: SimulatedNova
    host: str
    deployable: Deployable
    units: Callable[[str], dict[str, int]]
    tokens: Tokens | None = None

    @property
    def provider(self) -> str:
        return provider_uuid(self.deployable.name)


def group_for(deployable: Deployable) -> dict[str, str]:
    """What a guest gets of the deployable at once, as a device profile asks for it.

    It requires only the last trait: drivers name the most specific one last.
    """
    return {
        f"resources:{deployable.resource_class}": str(deployable.group_size),
        f"trait:{deployable.traits[-1]}": "required",
    }


class ServiceClient:
    """Client of one REST API; ``listener`` receives every exchange before its status is checked."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str], listener: Listener) -> None:
        self._name = name
        self._url = url
        self._listener = listener
        self._session = requests.Session()
        self._session.headers.update({"Accept": "application/json", **headers})

    def send(self, method: str, path: str, body: Any = None, *, expect: int = 200) -> Any:
        """Return the parsed body, None if empty. Any status but ``expect`` raises StepFailed."""
        try:
            answer = self._session.request(method, self._url + path, json=body)
            parsed = answer.json() if answer.content else None
        except requests.RequestException as error:
            raise StepFailed(f"{self._name} gave no usable answer to {method} {path}") from error
        self._listener(self._name, Exchange(method, path, body, answer.status_code, parsed))
        require(
            answer.status_code == expect,
            f"{self._name} answered {answer.status_code}, not {expect}, to {method} {path}",
        )
        return parsed


@dataclass(frozen=True)
class Clients:
    """The accelerator API as operators and as Nova use it, and Placement."""

    cyborg: ServiceClient
    nova: AcceleratorClient
    placement: ServiceClient

    @classmethod
    def of(cls, scenario: Scenario, listener: Listener) -> Self:
        def from_nova(one: Exchange) -> None:
            listener("Cyborg", replace(one, path=f"/v2{one.path}"))

        token = {"X-Auth-Token": TOKEN, "OpenStack-API-Version": MICROVERSION}
        tokens = scenario.tokens
        operator = {} if tokens is None else {"X-Auth-Token": tokens.operator}
        return cls(
            cyborg=ServiceClient("Cyborg", scenario.url, operator, listener),
            nova=AcceleratorClient(
                f"{scenario.url}/v2",
                None if tokens is None else tokens.user,
                None if tokens is None else tokens.nova,
                listener=from_nova,
            ),
            placement=ServiceClient("Placement", scenario.placement_url, token, listener),
        )
