# SPDX-License-Identifier: Apache-2.0
"""Notifications, readings and metrics, as their consumers see them."""
