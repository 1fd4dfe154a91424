# SPDX-License-Identifier: Apache-2.0
"""Functional tests: whole processes and real peers, through their doors."""
