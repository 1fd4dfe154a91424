# SPDX-License-Identifier: Apache-2.0
"""Tests of cyborg.rpc by itself."""
