# SPDX-License-Identifier: Apache-2.0
"""The process that runs privileged actions, on the kernel of this machine."""
