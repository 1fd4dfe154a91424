# SPDX-License-Identifier: Apache-2.0
"""The revisions: a linear chain that starts with the existing service's schema."""
