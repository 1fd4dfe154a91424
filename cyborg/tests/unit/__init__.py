# SPDX-License-Identifier: Apache-2.0
"""Unit tests, one package per room; nothing here leaves the process."""
