# SPDX-License-Identifier: Apache-2.0
"""Tests of the policy rules themselves; what they allow is tested through the API."""
