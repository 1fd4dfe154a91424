# SPDX-License-Identifier: Apache-2.0
"""Every ``openstack accelerator`` command, of both generations (checks 108 and 109).

With the commands of python-openstackclient alone, with those of python-cyborgclient (as older
releases of the former had none), and with both installed; behind Keystone and without it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.keystone.shell import Shell, write_clouds

#: What is overlooked to have the named generation of commands.
GENERATIONS = {
    "openstackclient": "cyborgclient",
    "cyborgclient": "openstackclient.accelerator",
    "both": "",
}
GROUP = {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
PROFILE = {"created_at", "updated_at", "uuid", "name", "groups", "description"}
ARQ = {
    "uuid",
    "state",
    "device_profile_name",
    "hostname",
    "device_rp_uuid",
    "instance_uuid",
    "attach_handle_type",
    "attach_handle_info",
}
DEVICE = {
    "created_at",
    "updated_at",
    "uuid",
    "type",
    "vendor",
    "model",
    "hostname",
    "std_board_info",
    "vendor_board_info",
}


@dataclass(frozen=True)
class ClientSession:
    """Somebody with administrator's rights at a shell."""

    shell: Shell
    generation: str
    authenticated: bool

    @property
    def of_osc(self) -> bool:
        """Whether the commands are those of python-openstackclient."""
        return self.generation != "cyborgclient"


@pytest.fixture(scope="module")
def without_keystone(cloud: Cloud) -> Iterator[str]:
    """The URL of an API that asks for no token."""
    with cloud.api({"api": {"auth_strategy": "noauth"}}) as url:
        yield url


def servers(environ: Any, start_response: Any) -> list[bytes]:
    """What the client asks Nova for: its version, and any server, which exists."""
    _, version, *rest = environ["PATH_INFO"].rstrip("/").split("/")
    links = [{"rel": "self", "href": f"http://{environ['HTTP_HOST']}/{version}/"}]
    body: dict[str, Any] = {
        "version": {"id": version, "status": "CURRENT", "version": "2.90", "links": links}
    }
    if rest:
        body = {"server": {"id": rest[-1], "name": rest[-1]}}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


@pytest.fixture(scope="module")
def compute_api() -> Iterator[str]:
    """The URL of a Nova in which every server exists."""
    with Loopback(servers) as loopback:
        yield f"{loopback.url}/v2.1"


@pytest.fixture(
    scope="module",
    params=[*product(("openstackclient", "cyborgclient"), ("keystone", "none")), ("both", "none")],
    ids="-".join,
)
def session(
    request: pytest.FixtureRequest,
    cloud: Cloud,
    without_keystone: str,
    compute_api: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ClientSession]:
    generation, auth = request.param
    home = tmp_path_factory.mktemp("home")
    if auth == "keystone":
        cloud.keystone.register("compute", compute_api)
        write_clouds(home, cloud.keystone, {"admin": cloud.people.admin})
        options = ["--os-cloud", "admin"]
    else:
        options = ["--os-auth-type", "none", "--os-endpoint", f"{without_keystone}/v2"]
    with Shell(
        home,
        options,
        overlook=GENERATIONS[generation],
        # Where there is no catalogue it would look servers up at the one endpoint it was given.
        **({} if auth == "keystone" else {"OS_COMPUTE_ENDPOINT_OVERRIDE": compute_api}),
    ) as shell:
        yield ClientSession(shell, generation, auth == "keystone")


@pytest.fixture
def profile(session: ClientSession) -> Iterator[dict[str, Any]]:
    """A profile that the command made."""
    name = f"profile-{uuid4().hex}"
    group = ",".join(f"{key}={value}" for key, value in GROUP.items())
    asked = ["--group", group] if session.of_osc else [json.dumps([GROUP])]
    yield session.shell.show(
        "accelerator device profile create", name, *asked, "--description", "d"
    )
    session.shell.do("accelerator device profile delete", name)


@pytest.fixture
def arq(session: ClientSession, profile: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An ARQ that the command made."""
    made = session.shell.show("accelerator arq create", profile["name"])
    yield made
    session.shell.do("accelerator arq delete", made["uuid"])


def test_client_manages_device_profiles(session: ClientSession, profile: dict[str, Any]):
    assert set(profile) == PROFILE
    assert profile["groups"] == [GROUP]  # values as strings, as they were sent
    UUID(profile["uuid"])
    for key in (profile["uuid"], profile["name"]):
        assert session.shell.show("accelerator device profile show", key) == profile
    (short,) = _mine(session.shell.show("accelerator device profile list"), profile)
    assert set(short) == {"uuid", "name", "groups", "description"}
    assert short["groups"] == [GROUP]
    (long,) = _mine(session.shell.show("accelerator device profile list --long"), profile)
    assert set(long) == PROFILE
    # From JSON.
    name = f"profile-{uuid4().hex}"
    made = session.shell.show("accelerator device profile create", name, json.dumps([GROUP, GROUP]))
    assert made["groups"] == [GROUP, GROUP]
    other = session.shell.show(
        "accelerator device profile create", f"{name}-2", json.dumps([GROUP])
    )
    session.shell.do("accelerator device profile delete", made["uuid"], f"{name}-2")
    assert "found" in session.shell.fails("accelerator device profile show", other["uuid"])


def test_client_manages_accelerator_requests(
    session: ClientSession, profile: dict[str, Any], arq: dict[str, Any]
):
    assert set(arq) == ARQ
    assert (arq["state"], arq["device_profile_name"]) == ("Initial", profile["name"])
    assert session.shell.show("accelerator arq show", arq["uuid"]) == arq
    (short,) = _mine(session.shell.show("accelerator arq list"), arq)
    assert set(short) == ARQ - {"hostname", "device_rp_uuid"}
    (long,) = _mine(session.shell.show("accelerator arq list --long"), arq)
    assert set(long) == ARQ
    assert "found" in session.shell.fails("accelerator arq show", str(uuid4()))


def test_client_binds_only_without_authentication(
    session: ClientSession, cloud: Cloud, arq: dict[str, Any]
):
    instance = str(uuid4())
    place = [arq["uuid"], cloud.host, instance, cloud.provider]
    if not session.of_osc:
        place.append("blue")  # the project, asked for and never sent
    if session.authenticated:
        for command, arguments in (("bind", place), ("unbind", place[:1])):
            complaint = session.shell.fails(f"accelerator arq {command}", *arguments)
            assert "requires a service token" in complaint.lower()
        return
    bound = session.shell.show("accelerator arq bind", *place)
    assert (bound["state"], bound["instance_uuid"]) == ("Bound", instance)
    assert bound["attach_handle_type"] == "TEST_PCI"
    unbound = session.shell.show("accelerator arq unbind", arq["uuid"])
    assert (unbound["state"], unbound["instance_uuid"]) == ("Unbound", None)


def test_client_manages_devices(session: ClientSession, cloud: Cloud):
    (found,) = [
        one
        for one in session.shell.show("accelerator device list --long")
        if one["hostname"] == cloud.host
    ]
    assert set(found) >= DEVICE
    assert (found["type"], found["vendor"]) == ("FPGA", "0xABCD")
    assert json.loads(found["std_board_info"])["device_id"]
    # Only the older generation asks for a microversion that has it; both together ask for 2.0.
    shown = {"openstackclient": None, "cyborgclient": "enabled", "both": "no such column"}
    assert found.get("status", "no such column") == shown[session.generation]
    (short,) = _mine(session.shell.show("accelerator device list"), found)
    assert set(short) - {"status"} == {"uuid", "type", "vendor", "hostname", "std_board_info"}
    for verb in ("disable", "enable"):
        session.shell.do(f"accelerator device {verb}", found["uuid"])
    assert set(session.shell.show("accelerator device show", found["uuid"])) >= DEVICE
    assert "found" in session.shell.fails("accelerator device show", str(uuid4()))


def test_client_lists_deployables(session: ClientSession):
    found = session.shell.show("accelerator deployable list --long")
    (one,) = [deployable for deployable in found if deployable["num_accelerators"] == 16]
    assert set(one) == {
        "created_at",
        "updated_at",
        "uuid",
        "parent_id",
        "root_id",
        "name",
        "num_accelerators",
        "device_id",
    }
    (short,) = _mine(session.shell.show("accelerator deployable list"), one)
    assert set(short) == {"uuid", "name", "device_id"}
    shown = session.shell.show("accelerator deployable show", one["uuid"])
    assert (shown["uuid"], shown["name"]) == (one["uuid"], one["name"])


def test_client_manages_attributes(session: ClientSession):
    deployable = session.shell.show("accelerator deployable list")[0]["uuid"]
    made = session.shell.show("accelerator device attribute create", deployable, "colour", "blue")
    assert (made["key"], made["value"]) == ("colour", "blue")
    shown = session.shell.show("accelerator device attribute show", made["uuid"])
    assert {"uuid", "deployable_id", "key", "value"} <= set(shown)
    (short,) = _mine(session.shell.show("accelerator device attribute list"), made)
    assert set(short) == {"uuid", "deployable_id", "key", "value"}
    (long,) = _mine(session.shell.show("accelerator device attribute list --long"), made)
    assert set(long) == {"created_at", "updated_at", *short}
    session.shell.do("accelerator device attribute delete", made["uuid"])
    assert "found" in session.shell.fails("accelerator device attribute show", made["uuid"])


def test_client_shows_device_status_from_2_3(cloud: Cloud, without_keystone: str, tmp_path: Path):
    options = ["--os-auth-type", "none", "--os-endpoint", f"{without_keystone}/v2"]
    newer = [*options, "--os-accelerator-api-version", "2.3"]
    for name in ("older", "newer"):
        (tmp_path / name).mkdir()
    # A process each: within one the client keeps the first version that it was told.
    with (
        Shell(tmp_path / "older", options) as shell,
        Shell(tmp_path / "newer", newer) as newer_shell,
    ):
        (device,) = shell.show("accelerator device list")
        for verb, status in (("disable", "maintaining"), ("enable", "enabled")):
            shell.do(f"accelerator device {verb}", device["uuid"])
            shown = newer_shell.show("accelerator device show", device["uuid"])
            assert shown["status"] == status


def _mine(rows: list[dict[str, Any]], one: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in rows if row["uuid"] == one["uuid"]]
