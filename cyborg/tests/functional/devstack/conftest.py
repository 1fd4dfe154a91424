# SPDX-License-Identifier: Apache-2.0
"""Which tests of the plugin can run here."""

from cyborg.tests.functional import deployments

# The services can only talk to each other over a broker.
collect_ignore = [] if deployments.HAS_BROKER else ["test_services.py"]
