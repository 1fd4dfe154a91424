# SPDX-License-Identifier: Apache-2.0
"""Functional tests: whole processes with real and simulated peers, through their APIs."""
