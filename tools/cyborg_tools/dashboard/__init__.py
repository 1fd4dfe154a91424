# SPDX-License-Identifier: Apache-2.0
"""Run a real Horizon with the panels of ``dashboard``, in an environment of its own."""
