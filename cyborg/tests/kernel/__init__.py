# SPDX-License-Identifier: Apache-2.0
"""Tests on a real kernel: ``tools/kernel test`` runs them in guests, never on this machine."""
