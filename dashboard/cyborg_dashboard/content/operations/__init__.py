# SPDX-License-Identifier: Apache-2.0
"""What the service does for operators."""
