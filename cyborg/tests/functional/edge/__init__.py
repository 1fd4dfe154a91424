# SPDX-License-Identifier: Apache-2.0
"""Attacks of clients without a token on every way to serve the API."""
