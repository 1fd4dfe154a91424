# SPDX-License-Identifier: Apache-2.0
"""Device profiles, for administrators."""
