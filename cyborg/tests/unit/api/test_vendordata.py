# SPDX-License-Identifier: Apache-2.0
"""What Nova's metadata service gets for a guest, with the request that Nova 34 sends."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import sqlalchemy as sa

from cyborg.db import models
from cyborg.db.engine import Database
from cyborg.tests.unit.api.world import Client


@pytest.fixture
def nova(make_client: Callable[..., Client]) -> Client:
    """A client of an API that knows the account of Nova's metadata service."""
    return make_client("[api]\ncompute_users = user-of-service\n")


PATH: Final = "POST /v2/vendordata"
#: The members that Nova sends: DynamicVendorData of nova/api/metadata/vendordata_dynamic.py.
BODY: Final[dict[str, Any]] = {
    "project-id": "<own>",
    "instance-id": "<instance>",
    "image-id": "",
    "user-data": None,
    "hostname": "guest",
    "metadata": {"anything": "of the user"},
    "boot-roles": "member,reader",
}


def test_nova_gets_the_accelerators_of_a_guest_without_a_microversion(
    nova: Client, db: Database
) -> None:
    address = '{"domain": "0000", "bus": "3b", "device": "00", "function": "0"}'
    with db.writer() as tx:
        tx.execute(sa.update(models.AttachHandle).values(attach_info=address))
        tx.execute(sa.update(models.Device).values(numa_node=1))
    answer = nova.ask(PATH, BODY, as_="service")
    assert answer.status == 200
    assert answer.headers["OpenStack-API-Version"] == "accelerator 2.100"
    (unit,) = answer.body["accelerators"]
    assert unit["uuid"] == nova.fill("<bound>")
    assert unit["device_uuid"] == nova.fill("<device>")
    assert (unit["pci_address"], unit["numa_node"]) == ("0000:3b:00.0", 1)
    assert nova.ask(PATH, BODY, as_="service", version="2.100").body == answer.body


def test_unit_without_an_address_has_none(nova: Client, db: Database) -> None:
    with db.writer() as tx:
        tx.execute(sa.update(models.AttachHandle).values(attach_info='{"asked_type": "a"}'))
    (unit,) = nova.ask(PATH, BODY, as_="service").body["accelerators"]
    assert unit["pci_address"] is None


@pytest.mark.parametrize("instance", ["<random>", "<busy>"])
def test_guest_has_only_units_that_are_bound(nova: Client, instance: str) -> None:
    answer = nova.ask(PATH, {**BODY, "instance-id": instance}, as_="service")
    assert (answer.status, answer.body) == (200, {"accelerators": []})


@pytest.mark.parametrize("version", ["2.0", "2.3"])
def test_older_microversions_have_no_vendordata(nova: Client, version: str) -> None:
    assert nova.ask(PATH, BODY, as_="service", version=version).status == 404


@pytest.mark.parametrize("user", ["member", "reader", "manager", "operator", "nobody"])
def test_users_read_no_vendordata(client: Client, user: str) -> None:
    assert client.ask(PATH, BODY, as_=user).status == 403


def test_account_with_the_role_of_services_alone_is_told_the_option(client: Client) -> None:
    answer = client.ask(PATH, BODY, as_="service")
    assert answer.status == 403
    assert "[api] compute_users" in answer.body["error_message"]


@pytest.mark.parametrize("body", [{}, {"instance-id": "guest"}, {"instance-id": None}, [], None])
def test_body_names_the_guest(nova: Client, body: Any) -> None:
    answer = nova.ask(PATH, body, as_="service")
    assert answer.status == 400
    if isinstance(body, dict):
        assert "instance-id" in answer.body["error_message"]
