# SPDX-License-Identifier: Apache-2.0
"""The panel of a project's accelerators."""

import horizon
from django.utils.translation import gettext_lazy as _


class Own(horizon.Panel):
    """See the package."""

    name = _("Accelerators")
    slug = "accelerators"
    permissions = ("openstack.services.accelerator",)
    policy_rules = (("accelerator", "cyborg:device:get_own"),)
