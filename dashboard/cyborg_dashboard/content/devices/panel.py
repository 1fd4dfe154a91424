# SPDX-License-Identifier: Apache-2.0
"""The panel of devices."""

import horizon
from django.utils.translation import gettext_lazy as _


class Devices(horizon.Panel):
    """Devices of all hosts."""

    name = _("Devices")
    slug = "accelerator_devices"
    permissions = ("openstack.services.accelerator",)
    policy_rules = (("accelerator", "cyborg:device:get_all"),)
