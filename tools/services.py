# SPDX-License-Identifier: Apache-2.0
"""Check that the servers for the functional tests answer; tools/test runs it in its environment.

Usage: services.py URL... At the first server that does not answer it prints one sentence and ends
with status 1.
"""

import sys

from cyborg import exception
from cyborg_tools import servers

try:
    for url in sys.argv[1:]:
        servers.check(url, f"--{url.partition('+')[0].partition(':')[0]}-url")
except exception.ConfigError as fault:
    sys.exit(str(fault))
