# SPDX-License-Identifier: Apache-2.0
"""Tests of the REST API in front of a conductor that behaves."""
