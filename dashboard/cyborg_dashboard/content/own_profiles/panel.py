# SPDX-License-Identifier: Apache-2.0
"""The panel of the device profiles that a project may use."""

import horizon
from django.utils.translation import gettext_lazy as _


class OwnProfiles(horizon.Panel):
    """See the package."""

    name = _("Device Profiles")
    slug = "accelerator_profiles"
    permissions = ("openstack.services.accelerator",)
    policy_rules = (("accelerator", "cyborg:device_profile:get_all"),)
