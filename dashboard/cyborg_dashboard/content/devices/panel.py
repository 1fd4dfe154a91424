# SPDX-License-Identifier: Apache-2.0
"""The panel of devices."""

import horizon
from django.utils.translation import gettext_lazy as _


class Devices(horizon.Panel):
    """Devices of all hosts."""

    name = _("Devices")
    slug = "accelerator_devices"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:device:update"),)
