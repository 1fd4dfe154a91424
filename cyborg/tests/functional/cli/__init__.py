# SPDX-License-Identifier: Apache-2.0
"""Tests of the command line with the real service, and inside the ``openstack`` client."""
