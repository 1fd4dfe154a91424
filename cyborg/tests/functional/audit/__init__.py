# SPDX-License-Identifier: Apache-2.0
"""The audit on real databases and a real Placement, damaged by hand."""
