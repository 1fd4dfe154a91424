# SPDX-License-Identifier: Apache-2.0
"""The panel of drivers."""

import horizon
from django.utils.translation import gettext_lazy as _


class Drivers(horizon.Panel):
    """See the package."""

    name = _("Drivers")
    slug = "accelerator_drivers"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:driver:update"),)
