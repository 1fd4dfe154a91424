# SPDX-License-Identifier: Apache-2.0
"""Tests of quickstart: its walk in this process, its command in one of its own."""
