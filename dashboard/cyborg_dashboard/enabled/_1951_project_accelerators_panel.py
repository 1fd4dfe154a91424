# SPDX-License-Identifier: Apache-2.0
"""The panel of a project's accelerators."""

PANEL = "accelerators"
PANEL_DASHBOARD = "project"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.own.panel.Own"
