# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-privileged`` process: runs the actions of the agent that need privileges.

The program reads no configuration file. systemd gives it a socket and capabilities. Without
systemd, root starts it with the path of a socket and the user of the agent.
"""

import argparse
import logging
import os
import pwd
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cyborg.conf.agent import PRIVILEGED_SOCKET

_NAME: Final = "cyborg-privileged"
#: The first descriptor that a service manager passes, sd_listen_fds(3).
_FIRST_DESCRIPTOR: Final = 3


def main() -> int:
    """Serve until the process is killed; return the exit status if it cannot begin."""
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__)
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(PRIVILEGED_SOCKET),
        help="path of the socket, if no service manager passes one (default: %(default)s)",
    )
    parser.add_argument(
        "--user",
        default="cyborg",
        help="user of the agent, if root starts the program (default: %(default)s)",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"{_NAME}[%(process)d]: %(message)s")
    try:
        user, group = _account(arguments.user)
        listener = _passed_socket(os.environ) or _new_socket(arguments.socket, user, group)
    except (OSError, LookupError) as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return 1
    # The import registers options of oslo.privsep, which --help and errors do not need.
    from cyborg.drivers.privileged.server import Server

    return Server(listener, user).run()


def _account(name: str) -> tuple[int, int]:
    """Return the ids of user and group whose connections are accepted."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    try:
        account = pwd.getpwnam(name)
    except KeyError as error:
        raise LookupError(f"user {name} does not exist; name the agent's with --user") from error
    return account.pw_uid, account.pw_gid


def _passed_socket(environment: Mapping[str, str]) -> socket.socket | None:
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    return socket.socket(fileno=_FIRST_DESCRIPTOR)


def _new_socket(path: Path, user: int, group: int) -> socket.socket:
    """Listen on a socket that only the user may connect to."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    if os.geteuid() == 0:
        os.chown(path, user, group)
    listener.listen()
    return listener
