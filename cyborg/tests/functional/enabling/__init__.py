# SPDX-License-Identifier: Apache-2.0
"""Devices from the moment they are found to the moment they are in service."""
