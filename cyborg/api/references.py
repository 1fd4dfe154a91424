# SPDX-License-Identifier: Apache-2.0
"""Types of parameters that identify objects of other resources.

The identifier in the path of a resource needs none of these: it is the ``uuid`` of an object of the
resource itself. ``cyborg.api.openapi`` makes the links of the OpenAPI document from all of them.
"""

from dataclasses import replace
from typing import Final

from cyborg.api import types

_ARQS: Final = "accelerator_requests"
_NAME: Final = ("name",)

ARQ: Final = types.Reference(types.UUID_TYPE, _ARQS)
#: Nova has the instances; Cyborg shows those that it knows as the instances of ARQs.
INSTANCE: Final = types.Reference(types.UUID_TYPE, _ARQS, ("instance_uuid",))
DEVICE: Final = types.Reference(types.UUID_TYPE, "devices")
DEPLOYABLE: Final = types.Reference(types.IntegerOrUuid(), "deployables")
PROVIDER: Final = types.Reference(types.UUID_TYPE, "deployables", ("rp_uuid",))
#: A device profile in a path: its uuid or its name.
PROFILE: Final = types.Reference(types.Anything(), "device_profiles", ("uuid", *_NAME))
PROFILES: Final = replace(PROFILE, item=types.Commas(types.Anything()))
PROFILE_NAME: Final = types.Reference(types.NAME, "device_profiles", _NAME)
PROFILE_NAMES: Final = replace(PROFILE_NAME, item=types.Commas(types.Anything()))
#: A driver in a path: the uuid of one host's row, or the name of an entry point.
DRIVER: Final = types.Reference(types.Text(100, minimum=1), "drivers", ("uuid", *_NAME))
INSTALLED_DRIVER: Final = replace(DRIVER, members=_NAME)
DRIVER_NAME: Final = types.Reference(types.NAME, "drivers", _NAME)
