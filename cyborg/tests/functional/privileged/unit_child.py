# SPDX-License-Identifier: Apache-2.0
"""A service manager in small: it runs a command with a socket as descriptor 3.

Run with the path of the socket, the id of its owner, and the command.
"""

import os
import socket
import sys

path, user, *command = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
os.umask(0o177)
listener.bind(path)
os.umask(0o022)
os.chown(path, int(user), int(user))
listener.listen()
if listener.fileno() == 3:
    listener.set_inheritable(True)
else:
    os.dup2(listener.fileno(), 3)
os.execvpe(command[0], command, {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
