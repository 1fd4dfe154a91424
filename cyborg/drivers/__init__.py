# SPDX-License-Identifier: Apache-2.0
"""Drivers: what finds, prepares and releases accelerators on the host of an agent."""
