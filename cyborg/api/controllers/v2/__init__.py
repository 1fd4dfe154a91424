# SPDX-License-Identifier: Apache-2.0
"""The resources of the v2 API, one module each."""
