# SPDX-License-Identifier: Apache-2.0
"""The device profiles that a project may use."""
