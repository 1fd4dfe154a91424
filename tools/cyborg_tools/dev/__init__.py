# SPDX-License-Identifier: Apache-2.0
"""Run the three daemons on real servers, and restart them after each change of their code."""
