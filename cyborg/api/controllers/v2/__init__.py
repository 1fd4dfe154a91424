# SPDX-License-Identifier: Apache-2.0
"""The nouns of the v2 API, one module each."""
