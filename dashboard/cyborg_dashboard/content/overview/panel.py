# SPDX-License-Identifier: Apache-2.0
"""The panel with the overview."""

import horizon
from django.utils.translation import gettext_lazy as _


class Overview(horizon.Panel):
    """See the package."""

    name = _("Overview")
    slug = "accelerator_overview"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:event:get_all"),)
