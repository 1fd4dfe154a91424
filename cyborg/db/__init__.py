# SPDX-License-Identifier: Apache-2.0
"""The database floor: engine, tables, and one module of plain functions per noun."""
