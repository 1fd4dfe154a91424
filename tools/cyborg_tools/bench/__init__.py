# SPDX-License-Identifier: Apache-2.0
"""The benchmark: what requests cost, how long they take, and how far that is from the floor."""
