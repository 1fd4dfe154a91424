# SPDX-License-Identifier: Apache-2.0
"""The service and the real Nova: its API, conductor, scheduler, metadata and two computes."""
