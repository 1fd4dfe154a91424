# SPDX-License-Identifier: Apache-2.0
"""The programs as real processes: how they start and end, serve, and outlive their peers."""
