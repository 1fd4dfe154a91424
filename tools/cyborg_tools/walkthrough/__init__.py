# SPDX-License-Identifier: Apache-2.0
"""Run every task of an operator with the ``cyborg`` command; see ``tools/walkthrough``."""
