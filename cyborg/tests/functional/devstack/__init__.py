# SPDX-License-Identifier: Apache-2.0
"""Tests of the devstack plugin and the hooks of grenade, against stand-ins of their functions."""
