# SPDX-License-Identifier: Apache-2.0
"""Policy rules of device profiles and accelerator requests (ARQs).

A caller reaches the ARQs of every project if the rule grants this, or if the rule
``cyborg:arq:all_projects`` does. Other callers reach the ARQs of their own project only. Nova with
a service token lists and deletes the ARQs of an instance of any project.
"""

from cyborg.model.device_profile import CHOOSE_IMAGE, SKIP_CLEANING
from cyborg.policies import base

RULES = [
    base.rule(
        "cyborg:device_profile:get_all",
        f"{base.READER_OR_ADMIN} or {base.OPERATOR}",
        "List device profiles. A project sees the public ones and those that name it.",
        "GET /v2/device_profiles",
        older="rule:admin_or_owner",
        since=base.OWNER_SINCE,
    ),
    base.rule(
        "cyborg:device_profile:get_one",
        f"{base.READER_OR_ADMIN} or {base.OPERATOR}",
        "Show a device profile, if it is public or names the project.",
        "GET /v2/device_profiles/{uuid or name}",
        older="rule:admin_or_owner",
        since=base.OWNER_SINCE,
    ),
    base.rule(
        "cyborg:device_profile:create",
        base.ADMIN,
        "Create a device profile.",
        "POST /v2/device_profiles",
        older="rule:is_admin",
        since=base.OWNER_SINCE,
    ),
    base.rule(
        "cyborg:device_profile:update",
        base.OPERATOR,
        "Update a device profile: its name, description, groups or projects. Profiles with an "
        f"image or with less cleaning also need {CHOOSE_IMAGE} or {SKIP_CLEANING}. The rule also "
        "lets callers ask whether hosts can give what groups request that are not stored.",
        "PATCH /v2/device_profiles/{uuid or name}",
        "POST /v2/device_profiles/explain",
    ),
    base.rule(
        SKIP_CLEANING,
        base.ADMIN,
        "Create a device profile with accel:clean none or reset, or change any member of a profile "
        "that has one of them after the change: the data of its guests may stay on the devices.",
        "POST /v2/device_profiles",
        "PATCH /v2/device_profiles/{uuid or name}",
    ),
    base.rule(
        CHOOSE_IMAGE,
        base.ADMIN,
        "Change any member of a device profile that has accel:bitstream_id or accel:function_id "
        "after the change. This rule does not restrict the creation of profiles.",
        "PATCH /v2/device_profiles/{uuid or name}",
    ),
    base.rule(
        "cyborg:device_profile:delete",
        base.ADMIN,
        "Delete device profiles.",
        "DELETE /v2/device_profiles/{uuid or name}",
        "DELETE /v2/device_profiles?value={names}",
        older="rule:is_admin",
        since=base.OWNER_SINCE,
    ),
    base.rule(
        "cyborg:arq:get_all",
        base.READER_OR_SERVICE,
        "List accelerator requests (ARQs).",
        "GET /v2/accelerator_requests",
        older="rule:admin_or_owner",
    ),
    base.rule(
        "cyborg:arq:get_one",
        base.READER_OR_SERVICE,
        "Show an ARQ.",
        "GET /v2/accelerator_requests/{uuid}",
        older="rule:admin_or_owner",
    ),
    base.rule(
        "cyborg:arq:create",
        base.MEMBER_OR_SERVICE,
        "Create the ARQs that a device profile requests.",
        "POST /v2/accelerator_requests",
        older=base.MEMBER_OR_ADMIN,
    ),
    base.rule(
        "cyborg:arq:delete",
        base.MEMBER_OR_SERVICE,
        "Delete ARQs. Deleting bound ARQs, or deleting by instance, also requires a service token.",
        "DELETE /v2/accelerator_requests/{uuid}",
        "DELETE /v2/accelerator_requests?arqs={uuids}",
        "DELETE /v2/accelerator_requests?instance={uuid}",
        older="rule:admin_or_owner",
    ),
    base.rule(
        "cyborg:arq:update",
        base.MEMBER_OR_SERVICE,
        "Bind and unbind ARQs. Also requires a service token.",
        "PATCH /v2/accelerator_requests",
        "PATCH /v2/accelerator_requests/{uuid}",
        older="rule:admin_or_owner",
    ),
    base.rule(
        "cyborg:vendordata:get",
        base.SERVICE_OR_ADMIN,
        "Show what a guest is told of its accelerators; for the metadata service of Nova. The "
        "account of a service must be listed in [api] compute_users.",
        "POST /v2/vendordata",
    ),
    base.rule(
        "cyborg:arq:all_projects",
        "rule:admin_api",
        "Apply the other rules to the objects of all projects instead of the caller's project "
        "only. Nova does not need it: see [api] compute_users.",
        "GET /v2/accelerator_requests",
        "PATCH /v2/accelerator_requests",
        "DELETE /v2/accelerator_requests",
    ),
]
