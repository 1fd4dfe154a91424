# SPDX-License-Identifier: Apache-2.0
"""Filters and tags of the templates."""
