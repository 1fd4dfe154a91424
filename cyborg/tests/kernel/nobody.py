# SPDX-License-Identifier: Apache-2.0
"""Run a part of a test as the user *nobody*, without any privilege."""

import contextlib
import io
import os
import traceback
from collections.abc import Callable
from typing import Final

#: The user and the group of this name in Debian.
NOBODY: Final = 65534


def as_nobody(call: Callable[[], object]) -> str:
    """Return the text of what the call returns in a child process, or of its traceback.

    The child holds no file that this process holds, and what it prints is lost. It cannot import
    modules of a Python that is below /root: import them before.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writer, 3)
            os.closerange(4, 1024)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with contextlib.redirect_stdout(io.StringIO()):
                text = str(call())
        except BaseException:  # noqa: BLE001
            # Nothing may leave the child, which is a copy of pytest.
            text = traceback.format_exc()
        os.write(3, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text
