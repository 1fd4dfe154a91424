# SPDX-License-Identifier: Apache-2.0
"""Tests of the panels, in a real browser."""
