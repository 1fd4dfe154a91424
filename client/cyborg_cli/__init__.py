# SPDX-License-Identifier: Apache-2.0
"""The command line: one implementation for the ``cyborg`` program and the ``openstack`` client."""
