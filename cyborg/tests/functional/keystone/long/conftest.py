# SPDX-License-Identifier: Apache-2.0
"""The cloud is that of the package above."""

from cyborg.tests.functional import deployments

# Only processes of their own write logs.
collect_ignore = [] if deployments.HAS_BROKER else ["test_secrets.py"]
