# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests: create, bind, release, device profiles and attributes."""
