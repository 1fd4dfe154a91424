# SPDX-License-Identifier: Apache-2.0
"""The schema and what rests on it, on the database that CYBORG_TEST_DATABASE_URL names."""
