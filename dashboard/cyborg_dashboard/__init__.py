# SPDX-License-Identifier: Apache-2.0
"""Panels of Horizon for the accelerator service."""
