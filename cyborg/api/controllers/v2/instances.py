# SPDX-License-Identifier: Apache-2.0
"""Instances: attach accelerators to existing instances and detach them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import wsme

from cyborg.api import microversion, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.model.operation import Operation
from cyborg.rpc.verbs import Attach, Detach


class AttachBody(types.Declared):
    """The device profile to attach; by default the profile of the instance's flavor."""

    device_profile = wsme.wsattr(types.Text(types.MAX_INT, minimum=1))


class Instances(Controller):
    """``/v2/instances``."""

    collection = "instances"
    routes: ClassVar[Routes] = {
        "*/accelerators": {"POST": "attach", "DELETE": "detach_all"},
        "*/accelerators/*": {"DELETE": "detach"},
    }

    @expose(
        "cyborg:instance:attach",
        types.UUID_TYPE,
        body=types.Object(AttachBody, closed=True),
        since=microversion.EXTENDED,
        long=True,
    )
    def attach(self, call: Call, uuid: str, body: Mapping[str, Any]) -> Operation:
        """Start to attach all accelerators of a device profile, or none."""
        profile = body.get("device_profile")
        return self.conductor.write(Attach(*call.origin, uuid, profile))

    @expose("cyborg:instance:detach", types.UUID_TYPE, since=microversion.EXTENDED, long=True)
    def detach_all(self, call: Call, uuid: str) -> Operation:
        """Start to detach all attached accelerators; those of the flavor stay."""
        return self.conductor.write(Detach(*call.origin, uuid, None))

    @expose(
        "cyborg:instance:detach",
        types.UUID_TYPE,
        types.UUID_TYPE,
        since=microversion.EXTENDED,
        long=True,
    )
    def detach(self, call: Call, uuid: str, arq: str) -> Operation:
        """Start to detach one attached accelerator."""
        return self.conductor.write(Detach(*call.origin, uuid, arq))
