# SPDX-License-Identifier: Apache-2.0
"""Tests of what tests, quickstart and benchmark stand on."""
