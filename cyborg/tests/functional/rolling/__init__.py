# SPDX-License-Identifier: Apache-2.0
"""Releases that run side by side: what crossed the bus then is read today, and the reverse."""
