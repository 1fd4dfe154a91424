# SPDX-License-Identifier: Apache-2.0
"""The panel of accelerator requests."""

PANEL = "accelerator_requests"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.requests.panel.Requests"
