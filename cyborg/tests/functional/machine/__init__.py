# SPDX-License-Identifier: Apache-2.0
"""The whole service as a state machine: anybody may do anything, and a small model must hold."""
