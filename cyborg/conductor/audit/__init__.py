# SPDX-License-Identifier: Apache-2.0
"""The audit: find what does not hold, repair it, and do both periodically."""
