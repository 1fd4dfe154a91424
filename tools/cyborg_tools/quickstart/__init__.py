# SPDX-License-Identifier: Apache-2.0
"""Run the whole service on one machine and demonstrate its use; see ``tools/quickstart``."""
