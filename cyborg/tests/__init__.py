# SPDX-License-Identifier: Apache-2.0
"""Tests of Cyborg: unit (pure and fast) and functional (through the doors of the service)."""
