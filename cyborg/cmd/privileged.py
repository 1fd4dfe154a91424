# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-privileged`` process: runs the actions of the agent that need privileges.

The program reads no configuration file. systemd gives it a socket and capabilities, and a user of
its own. Without systemd, root starts it with the path of a socket and the user of the agent. It
does not start if the user of the agent can change its code.
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

from cyborg import exception
from cyborg.conf.agent import PRIVILEGED_FUNCTIONS, PRIVILEGED_SOCKET
from cyborg.drivers.privileged import own_code

LOG = logging.getLogger(__name__)

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
        help="user of the agent (default: %(default)s)",
    )
    parser.add_argument(
        "--functions",
        type=Path,
        default=Path(PRIVILEGED_FUNCTIONS),
        help="file of root with the functions that may be changed (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-writable-code",
        action="store_true",
        help="start although the user of the agent can change the program, and so become root; for "
        "machines of developers",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"{_NAME}[%(process)d]: %(message)s")
    try:
        account = _account(arguments.user)
        _judge_code(account, allow=arguments.allow_writable_code)
        listener = _passed_socket(os.environ) or _new_socket(arguments.socket, account)
    except (OSError, LookupError, exception.HostError) as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return 1
    # The import registers options of oslo.privsep, which --help and errors do not need.
    from cyborg.drivers.privileged.server import Server

    return Server(listener, account.pw_uid, str(arguments.functions)).run()


def _account(name: str) -> pwd.struct_passwd:
    """Return the user whose connections are accepted."""
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise LookupError(f"user {name} does not exist; name the agent's with --user") from error


def _judge_code(account: pwd.struct_passwd, *, allow: bool) -> None:
    """Raise exception.HostError if the agent can change what runs here, or log it if allowed."""
    if account.pw_uid == 0:
        # An agent of root needs no way to become root.
        return
    try:
        own_code.check(account)
    except exception.HostError as error:
        if not allow:
            raise
        LOG.warning("%s; --allow-writable-code permits it", error)


def _passed_socket(environment: Mapping[str, str]) -> socket.socket | None:
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    return socket.socket(fileno=_FIRST_DESCRIPTOR)


def _new_socket(path: Path, account: pwd.struct_passwd) -> socket.socket:
    """Listen on a socket that only the user may connect to."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    if os.geteuid() == 0:
        os.chown(path, account.pw_uid, account.pw_gid)
    listener.listen()
    return listener
