# SPDX-License-Identifier: Apache-2.0
"""Hosts and the processes of the service."""
