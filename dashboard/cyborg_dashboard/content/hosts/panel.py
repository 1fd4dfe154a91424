# SPDX-License-Identifier: Apache-2.0
"""The panel of hosts."""

import horizon
from django.utils.translation import gettext_lazy as _


class Hosts(horizon.Panel):
    """See the package."""

    name = _("Hosts")
    slug = "accelerator_hosts"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:service:update"),)
