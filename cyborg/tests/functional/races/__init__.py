# SPDX-License-Identifier: Apache-2.0
"""Many at once on two conductors: whoever wins, there is one winner, and nothing is half done."""
