# SPDX-License-Identifier: Apache-2.0
"""The panels, one package for each."""
