# SPDX-License-Identifier: Apache-2.0
"""The panel of device profiles."""

PANEL = "accelerator_profiles"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.profiles.panel.Profiles"
