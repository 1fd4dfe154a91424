# SPDX-License-Identifier: Apache-2.0
"""The panel of operations."""

PANEL = "accelerator_operations"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "accelerators"
ADD_PANEL = "cyborg_dashboard.content.operations.panel.Operations"
