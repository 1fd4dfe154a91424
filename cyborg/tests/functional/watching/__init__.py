# SPDX-License-Identifier: Apache-2.0
"""Who watches over the service: notifications, live usage and metrics, through their doors."""
