# SPDX-License-Identifier: Apache-2.0
"""The rules of the audit in plain Python, which tests compare with the audit in SQL."""
