# SPDX-License-Identifier: Apache-2.0
"""The audit: find violated invariants, repair them, and do both in a periodic job."""
