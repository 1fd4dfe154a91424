# SPDX-License-Identifier: Apache-2.0
"""The panel of devices."""

PANEL = "accelerator_devices"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.devices.panel.Devices"
