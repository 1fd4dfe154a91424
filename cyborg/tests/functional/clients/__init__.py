# SPDX-License-Identifier: Apache-2.0
"""Tests of the clients against the real Placement and simulated peers, over HTTP."""
