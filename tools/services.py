# SPDX-License-Identifier: Apache-2.0
"""Check what the functional tests need; tools/test runs it in its environment.

Usage: services.py URL... If programs are missing, it prints one line that installs them; else one
sentence about the first server that does not answer. The status is 1 then.
"""

import sys

from cyborg import exception
from cyborg.tests.fixtures import programs
from cyborg_tools import servers

try:
    programs.require(programs.SERVICES)
    for url in sys.argv[1:]:
        servers.check(url, f"--{url.partition('+')[0].partition(':')[0]}-url")
except (RuntimeError, exception.ConfigError) as fault:
    sys.exit(str(fault))
