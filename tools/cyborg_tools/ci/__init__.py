# SPDX-License-Identifier: Apache-2.0
"""Judge a change: the steps of ``.ci/run``, which of them a run takes, and their verdicts."""
