# SPDX-License-Identifier: Apache-2.0
"""Composition roots: each program of this service reads its configuration here, and only here."""
