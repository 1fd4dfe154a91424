# SPDX-License-Identifier: Apache-2.0
"""The panel of hosts."""

PANEL = "accelerator_hosts"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.hosts.panel.Hosts"
