# SPDX-License-Identifier: Apache-2.0
"""Boot a real kernel with emulated PCI functions, and run commands and tests in it."""
