# SPDX-License-Identifier: Apache-2.0
"""Composition roots: the only place where each program of the service reads its configuration."""
