# SPDX-License-Identifier: Apache-2.0
"""What ``tools/walkthrough`` runs: the operators' plane, walked through with ``cyborg`` alone."""
