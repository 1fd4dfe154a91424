# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: small defects in single expressions, which the tests must notice."""
