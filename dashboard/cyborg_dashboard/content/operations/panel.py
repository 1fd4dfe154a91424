# SPDX-License-Identifier: Apache-2.0
"""The panel of operations."""

import horizon
from django.utils.translation import gettext_lazy as _


class Operations(horizon.Panel):
    """See the package."""

    name = _("Operations")
    slug = "accelerator_operations"
    permissions = ("openstack.services.accelerator",)
    policy_rules = (("accelerator", "cyborg:operation:get_all"),)
