# SPDX-License-Identifier: Apache-2.0
"""The service behind the real Keystone, and the clients of the package index in front of it."""
