# SPDX-License-Identifier: Apache-2.0
"""Database access: the engine, the tables, and one module of plain functions for each noun."""
