# SPDX-License-Identifier: Apache-2.0
"""The panel with the overview."""

PANEL = "accelerator_overview"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.overview.panel.Overview"
