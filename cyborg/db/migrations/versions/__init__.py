# SPDX-License-Identifier: Apache-2.0
"""The revisions, in one line from the existing service's schema to ours."""
