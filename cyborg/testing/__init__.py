# SPDX-License-Identifier: Apache-2.0
"""Real and simulated peers that the tests, the quickstart and the benchmark run beside us."""
