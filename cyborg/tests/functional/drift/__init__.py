# SPDX-License-Identifier: Apache-2.0
"""What others do to Placement and hosts behind our back: found, and repaired or explained."""
