# SPDX-License-Identifier: Apache-2.0
"""Rules of the database's rows, each in a test of its own."""
