# SPDX-License-Identifier: Apache-2.0
"""The group of panels for users of a project."""

from django.utils.translation import gettext_lazy as _

PANEL_GROUP = "accelerators"
PANEL_GROUP_NAME = _("Accelerators")
PANEL_GROUP_DASHBOARD = "project"
