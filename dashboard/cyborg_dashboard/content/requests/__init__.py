# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests of all projects."""
