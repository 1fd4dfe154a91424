# SPDX-License-Identifier: Apache-2.0
"""The panel of device profiles."""

import horizon
from django.utils.translation import gettext_lazy as _


class Profiles(horizon.Panel):
    """See the package."""

    name = _("Device Profiles")
    slug = "accelerator_profiles"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:device_profile:update"),)
