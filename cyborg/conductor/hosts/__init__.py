# SPDX-License-Identifier: Apache-2.0
"""Hosts and their services: heartbeats, removal, failover, lost and managed devices."""
