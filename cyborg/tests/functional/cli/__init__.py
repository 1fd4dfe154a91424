# SPDX-License-Identifier: Apache-2.0
"""Tests of the commands with the real API, and as a plug-in of the ``openstack`` client."""
