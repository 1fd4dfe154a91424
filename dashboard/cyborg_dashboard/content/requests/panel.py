# SPDX-License-Identifier: Apache-2.0
"""The panel of accelerator requests."""

import horizon
from django.utils.translation import gettext_lazy as _


class Requests(horizon.Panel):
    """See the package."""

    name = _("Requests")
    slug = "accelerator_requests"
    permissions = ("openstack.services.accelerator",)
    # Horizon asks for the rule of the panel alone if somebody types its address.
    policy_rules = (("accelerator", "cyborg:arq:all_projects"),)
