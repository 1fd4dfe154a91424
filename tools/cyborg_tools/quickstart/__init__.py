# SPDX-License-Identifier: Apache-2.0
"""What ``tools/quickstart`` runs: the whole service on one machine, and a walk through its use."""
