# SPDX-License-Identifier: Apache-2.0
"""The group of panels for administrators, and what the panels bring along."""

from django.utils.translation import gettext_lazy as _

PANEL_GROUP = "accelerators"
PANEL_GROUP_NAME = _("Accelerators")
PANEL_GROUP_DASHBOARD = "admin"

ADD_INSTALLED_APPS = ["cyborg_dashboard"]
ADD_SCSS_FILES = ["dashboard/cyborg/accelerators.scss"]
ADD_JS_FILES = ["dashboard/cyborg/accelerators.js"]
