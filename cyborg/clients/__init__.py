# SPDX-License-Identifier: Apache-2.0
"""Clients of other services: Placement, Nova, Glance, and the sessions they share.

Each client gets a keystoneauth adapter; its docstring names any other state that it has. If a peer
cannot be reached, refuses the account or fails, the client raises ``exception.Unavailable``.
"""
