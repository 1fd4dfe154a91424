# SPDX-License-Identifier: Apache-2.0
"""Alembic's room: the chain of revisions, and the helpers that only they use.

A revision never imports the models: those move on, and a revision must not.
"""
