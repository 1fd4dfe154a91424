# SPDX-License-Identifier: Apache-2.0
"""The database layer: engine, tables, and one module of plain functions per noun."""
