# SPDX-License-Identifier: Apache-2.0
"""A service manager in small: it runs a command with a socket as descriptor 3.

Run with the path of the socket, the ids of its owner and of its group, and the command.
"""

import os
import socket
import sys

path, user, group, *command = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
os.umask(0o117)
listener.bind(path)
os.umask(0o022)
os.chown(path, int(user), int(group))
listener.listen()
if listener.fileno() == 3:
    listener.set_inheritable(True)
else:
    os.dup2(listener.fileno(), 3)
os.execvpe(command[0], command, {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
