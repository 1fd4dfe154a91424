# SPDX-License-Identifier: Apache-2.0
"""The panel of drivers."""

PANEL = "accelerator_drivers"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.drivers.panel.Drivers"
