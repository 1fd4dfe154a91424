# SPDX-License-Identifier: Apache-2.0
"""The real openstack-placement in this process, and the parts of Nova that fill and query it.

One per process: Placement keeps its database and its policy in module-level state. Tests keep
apart by fresh host names. It runs without Keystone (``noauth2``; the token is ``admin``), on a
SQLite file, one request at a time, over HTTP on the loopback interface.
"""

import atexit
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from keystoneauth1.adapter import Adapter
from keystoneauth1.token_endpoint import Token
from oslo_config import cfg
from placement import conf as placement_conf
from placement import db_api, deploy

from cyborg.clients.keystone import Session
from cyborg.testing.loopback import Loopback

#: What ``[placement]`` needs to reach it: auth_type = admin_token, endpoint = its url, this token.
TOKEN = "admin"
#: Nova 34 asks for candidates at 1.36 at least (same_subtree, string suffixes, mappings).
_MICROVERSION = "1.36"
# Unsynchronised: it may lose its last writes with the machine's power, and nobody waits for the
# disk meanwhile.
_CONF = """\
[api]
auth_strategy = noauth2
[placement_database]
connection = sqlite:///{database}
sync_on_startup = true
sqlite_synchronous = false
"""


@dataclass(frozen=True)
class Candidate:
    """One way to satisfy a query: what to allocate, and which provider answers which group."""

    allocations: dict[str, Any]
    mappings: dict[str, list[str]]


class PlacementService:
    """The service on a database file below ``directory``; a context manager, or start and stop.

    A second one in the same process is possible only after the first stopped, and only on the
    same directory; RuntimeError otherwise.
    """

    _directory: Path | None = None

    def __init__(self, directory: Path, port: int = 0) -> None:
        self._loopback = Loopback(_application(directory), port=port, one_at_a_time=True)
        self._nova = self.adapter()

    @property
    def url(self) -> str:
        """The endpoint, without a trailing slash."""
        return self._loopback.url

    def adapter(self) -> Adapter:
        """A new adapter with administrator rights, over a session of its own."""
        return Adapter(Session(auth=Token(self.url, TOKEN)), service_type="placement")

    def start(self) -> None:
        """Answer from now on."""
        self._loopback.start()

    def stop(self) -> None:
        """Close the port; the database stays."""
        self._loopback.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.stop()

    def make_compute(self, name: str) -> str:
        """Create a compute's own provider as nova-compute does; returns its uuid.

        Calling twice does no harm.
        """
        found = self.call("GET", f"/resource_providers?name={name}")["resource_providers"]
        if found:
            return str(found[0]["uuid"])
        root = self.call("POST", "/resource_providers", {"name": name})
        path = f"/resource_providers/{root['uuid']}"
        inventories = {"VCPU": {"total": 8}, "MEMORY_MB": {"total": 16384}}
        answer = self.call(
            "PUT",
            f"{path}/inventories",
            {"resource_provider_generation": root["generation"], "inventories": inventories},
        )
        self.call(
            "PUT",
            f"{path}/traits",
            {
                "resource_provider_generation": answer["resource_provider_generation"],
                "traits": ["COMPUTE_ACCELERATORS", "OWNER_NOVA"],
            },
        )
        return str(root["uuid"])

    def name_of(self, provider: str) -> str:
        """The name of the provider with this uuid."""
        return str(self.call("GET", f"/resource_providers/{provider}")["name"])

    def candidates(
        self, groups: Mapping[str, Mapping[str, str]], in_tree: str | None = None
    ) -> list[Candidate]:
        """Ask as Nova's scheduler does for one VCPU and the groups (see ``requested``).

        ``in_tree`` narrows it to one compute. The keys of ``groups`` are those of a candidate's
        ``mappings``; the one of the compute itself is the empty string.
        """
        query: list[tuple[str, str]] = [
            ("resources", "VCPU:1"),
            ("root_required", "COMPUTE_ACCELERATORS"),
            ("group_policy", "none"),
            ("limit", "1000"),
        ]
        if in_tree is not None:
            query.append(("in_tree", in_tree))
        for name, group in groups.items():
            query.extend(_granular(name, group))
        found = self.call("GET", "/allocation_candidates", query=query)
        return [
            Candidate(one["allocations"], one["mappings"]) for one in found["allocation_requests"]
        ]

    def allocate(self, consumer: str, candidate: Candidate, project: str = "demo") -> None:
        """Take a candidate for an instance, beside what it holds of other providers already.

        Raises RuntimeError when somebody else was faster.
        """
        path = f"/allocations/{consumer}"
        held = self.call("GET", path)
        kept = {one: {"resources": of["resources"]} for one, of in held["allocations"].items()}
        self.call(
            "PUT",
            path,
            {
                "allocations": kept | candidate.allocations,
                "mappings": candidate.mappings,
                "consumer_generation": held.get("consumer_generation"),
                "project_id": held.get("project_id", project),
                "user_id": held.get("user_id", project),
            },
        )

    def free(self, consumer: str) -> None:
        """Remove all allocations of a consumer; none is fine."""
        self.call("DELETE", f"/allocations/{consumer}", accept=(404,))

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: list[tuple[str, str]] | None = None,
        accept: tuple[int, ...] = (),
    ) -> Any:
        """One request as administrator; the parsed answer (None if empty).

        Raises RuntimeError for a status from 400 that is not in ``accept``.
        """
        answer = self._nova.request(
            path,
            method,
            microversion=_MICROVERSION,
            raise_exc=False,
            headers={"Accept": "application/json"},
            params=query,
            **({} if body is None else {"json": body}),
        )
        if answer.status_code >= 400 and answer.status_code not in accept:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None


def suffix(index: int, port: str = "") -> str:
    """The name under which Nova asks for the group at ``index`` of a flavor's or port's profile."""
    return f"device_profile_{index}{port}"


def requested(groups: Sequence[Mapping[str, str]], port: str = "") -> dict[str, Mapping[str, str]]:
    """A profile's groups under the names that Nova gives them in its query."""
    return {suffix(index, port): group for index, group in enumerate(groups)}


@cache
def shared() -> PlacementService:
    """The one of this process for all tests, running until the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="placement-"))
    service = PlacementService(directory)
    service.start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(service.stop)
    return service


def fresh_host(prefix: str = "host") -> str:
    """A host name that nobody used yet."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}.example.org"


_served: dict[str, Any] = {}


def _application(directory: Path) -> Any:
    """The WSGI application, made once per process."""
    location = directory.resolve()
    if not _served:
        _served.update(location=location, application=_load(location))
    if _served["location"] != location:
        raise RuntimeError(f"this process serves Placement from {_served['location']} already")
    return _served["application"]


def _load(directory: Path) -> Any:
    file = directory / "placement.conf"
    file.write_text(_CONF.format(database=directory / "placement.sqlite"))
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf([], project="placement", default_config_files=[str(file)], default_config_dirs=[])
    db_api.configure(conf)
    return deploy.loadapp(conf)


def _granular(name: str, group: Mapping[str, str]) -> list[tuple[str, str]]:
    """The parts of the query for one group; Nova leaves out groups that ask for nothing."""
    amounts = [
        f"{key.partition(':')[2]}:{value}"
        for key, value in group.items()
        if key.startswith("resources:")
    ]
    if not amounts:
        return []
    traits = [
        ("!" if value == "forbidden" else "") + key.partition(":")[2]
        for key, value in group.items()
        if key.startswith("trait:")
    ]
    parts = [(f"resources{name}", ",".join(amounts))]
    return parts + ([(f"required{name}", ",".join(traits))] if traits else [])
