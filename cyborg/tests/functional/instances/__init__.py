# SPDX-License-Identifier: Apache-2.0
"""What devices show of the instances that use them, and how the service comes to know it."""
