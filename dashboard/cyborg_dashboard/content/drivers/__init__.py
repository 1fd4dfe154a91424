# SPDX-License-Identifier: Apache-2.0
"""Drivers of hosts."""
