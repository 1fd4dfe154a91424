# SPDX-License-Identifier: Apache-2.0
"""The panel of operations."""

import horizon
from django.utils.translation import gettext_lazy as _


class Operations(horizon.Panel):
    """See the package."""

    name = _("Operations")
    slug = "accelerator_operations"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:service:discover"),)
