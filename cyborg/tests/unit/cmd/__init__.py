# SPDX-License-Identifier: Apache-2.0
"""Tests of what the programs do without database and bus."""
