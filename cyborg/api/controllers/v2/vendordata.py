# SPDX-License-Identifier: Apache-2.0
"""Vendordata: what a guest is told of its accelerators by Nova's metadata service.

Nova asks with a POST for each guest that reads its metadata, and puts the answer into
``vendor_data2.json`` as it is: https://docs.openstack.org/nova/latest/admin/vendordata.html
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.answers import Answer, Member
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import arqs
from cyborg.db.arqs import GuestUnit
from cyborg.model.pci import PciAddress


class VendordataBody(types.Declared):
    """What Nova sends of a guest; only the member that names the guest is read."""

    instance_id = wsme.wsattr(types.UUID_TYPE, name="instance-id", mandatory=True)


GUEST_UNIT = Answer[GuestUnit](
    "GuestUnit",
    "An accelerator of a guest.",
    uuid=Member(types.UUID_TYPE, lambda unit: unit.arq_uuid),
    device_uuid=Member(types.UUID_TYPE, lambda unit: unit.uuid),
    type=Member(answers.STRING),
    vendor=Member(answers.STRING),
    model=Member(answers.STRING),
    resource_class=Member(answers.STRING),
    numa_node=Member(answers.Nullable(types.INTEGER)),
    attach_handle_type=Member(answers.STRING, lambda unit: unit.attach_type),
    attach_handle_uuid=Member(types.UUID_TYPE, lambda unit: unit.handle_uuid),
    pci_address=Member(answers.TEXT_OR_NULL, lambda unit: _address(unit)),
)


class Vendordata(Controller):
    """``/v2/vendordata``."""

    collection = "vendordata"
    routes: ClassVar[Routes] = {"": {"POST": "show"}}

    @expose(
        "cyborg:vendordata:get",
        body=types.Object(VendordataBody),
        since=microversion.EXTENDED,
        unversioned=True,
        answer=answers.Envelope(types.Items(GUEST_UNIT), "accelerators"),
    )
    def show(self, call: Call, body: Mapping[str, Any]) -> Sequence[GuestUnit]:
        """Return the accelerators of a guest; none for a guest without accelerators.

        Nova sends no microversion, so a request without one has the newest. Nova sends no service
        token either, so its account must be one of ``[api] compute_users``.
        """
        if not call.scope.everywhere:
            raise exception.Forbidden(
                reason="Only Nova reads vendordata: list the user of its [vendordata_dynamic_auth] "
                "in [api] compute_users of this service."
            )
        with self.reader.reader() as tx:
            return arqs.of_guest(tx, body["instance-id"])


def _address(unit: GuestUnit) -> str | None:
    """Return the PCI address of a unit on its host; None if the unit has none."""
    try:
        return str(PciAddress.from_info(json.loads(unit.attach_info)))
    except ValueError:
        return None
