# SPDX-License-Identifier: Apache-2.0
"""Cyborg, the OpenStack service for the life cycle of hardware accelerators."""
