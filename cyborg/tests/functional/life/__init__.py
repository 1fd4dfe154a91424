# SPDX-License-Identifier: Apache-2.0
"""The whole service through its doors: HTTP in front, the bus between, real Placement behind."""
