# SPDX-License-Identifier: Apache-2.0
"""The agent: runs on each compute host; owns its accelerators and their resource providers."""
