# SPDX-License-Identifier: Apache-2.0
"""Clients of the services around us: Placement, Nova, Glance, and the sessions they share.

Each client gets a keystoneauth adapter and holds no other state than it says. A peer that cannot
be reached, does not let us in or breaks is ``exception.Unavailable``, whatever the cause was.
"""
