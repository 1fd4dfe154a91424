# SPDX-License-Identifier: Apache-2.0
"""The conductor: owns the SQL database and every change of state in it."""
