# SPDX-License-Identifier: Apache-2.0
"""``python -m cyborg_tools.quickstart``, as tools/quickstart calls it."""

import signal
import sys

if __name__ == "__main__":
    # Loading takes seconds; an interrupt before its end leaves nothing to clean up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cyborg_tools.quickstart.main import main

    sys.exit(main(sys.argv[1:]))
