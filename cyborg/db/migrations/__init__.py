# SPDX-License-Identifier: Apache-2.0
"""The alembic environment: the chain of revisions, and the helpers that only revisions use.

A revision never imports the models: the models change, and a released revision must not.
"""
