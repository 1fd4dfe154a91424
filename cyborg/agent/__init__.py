# SPDX-License-Identifier: Apache-2.0
"""The agent: one per compute host; owns its hardware and its providers in Placement."""
