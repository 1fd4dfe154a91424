# SPDX-License-Identifier: Apache-2.0
"""The panel of the device profiles of a project."""

PANEL = "accelerator_profiles"
PANEL_DASHBOARD = "project"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.own_profiles.panel.OwnProfiles"
