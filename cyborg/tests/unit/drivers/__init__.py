# SPDX-License-Identifier: Apache-2.0
"""Tests of the drivers and of what they stand on."""
