# SPDX-License-Identifier: Apache-2.0
"""Reports of agents: apply them, and compute the desired state of a host."""
