# SPDX-License-Identifier: Apache-2.0
"""What requests cost, counted: the same with nothing else in the database as with a crowd."""
