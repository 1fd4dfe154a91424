# SPDX-License-Identifier: Apache-2.0
"""The accelerators of a project."""
