# SPDX-License-Identifier: Apache-2.0
"""A simulated Linux kernel: the meaning of sysfs writes on a simulated host."""
