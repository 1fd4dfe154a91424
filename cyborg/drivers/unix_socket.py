# SPDX-License-Identifier: Apache-2.0
"""Ask a program through its UNIX socket, with a limit on the time and on the size of the answer."""

import socket
import time
from collections.abc import Callable

from cyborg import exception

_CHUNK = 64 * 1024

#: Tells from the bytes that have come so far whether they are the whole answer.
Complete = Callable[[bytes], bool]


def exchange(
    path: str,
    request: bytes,
    complete: Complete,
    *,
    timeout: float,
    cap: int,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """Send a request on a connection of its own, and return the answer.

    The answer may come in any number of pieces. Raises exception.HostError, with ``errno`` if the
    operating system gives one, when nothing listens, when the answer is not complete within
    ``timeout`` seconds or has more than ``cap`` bytes, and when the connection ends before.
    """
    deadline = clock() + timeout
    number: int | None = None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(timeout)
            peer.connect(path)
            peer.sendall(request)
            answer = b""
            while len(answer) <= cap:
                if complete(answer):
                    return answer
                left = deadline - clock()
                if left <= 0:
                    raise TimeoutError
                peer.settimeout(left)
                chunk = peer.recv(_CHUNK)
                if not chunk:
                    raise EOFError
                answer += chunk
            reason = f"the answer has more than {cap} bytes"
    except TimeoutError:
        reason = f"there was no complete answer within {timeout:g} seconds"
    except EOFError:
        reason = "the connection was closed before the answer was complete"
    except OSError as error:
        reason, number = error.strerror or str(error), error.errno
    except ValueError as error:
        # A path with a NUL in it.
        reason = str(error)
    raise exception.HostError(action=f"asking {path}", reason=reason, errno=number)
