# SPDX-License-Identifier: Apache-2.0
"""Tests of the command line, against a service on a real port that answers the agreed shapes."""
