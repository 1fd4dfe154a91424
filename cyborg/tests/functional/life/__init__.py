# SPDX-License-Identifier: Apache-2.0
"""The whole service over HTTP, with the message bus and the real Placement."""
