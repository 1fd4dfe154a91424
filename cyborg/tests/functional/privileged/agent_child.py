# SPDX-License-Identifier: Apache-2.0
"""An agent in small: it gives its privileges away, then runs the actions that it reads.

Run with a socket, a user id and a command for oslo.privsep, or an empty word. Each line on standard
input is a JSON list: the name of an action and its fields. Each line of the answer is a JSON object
with ``result`` or with the fields of an error. The first line has the process's own status.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from cyborg import exception

# A user without rights may not enter the directory of the interpreter.
from cyborg.drivers.privileged import channel, contexts
from cyborg.drivers.privileged.actions import ACTIONS, load
from cyborg.drivers.privileged.client import Client


def say(answer: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


path, user, helper = sys.argv[1:]
if os.geteuid() == 0 and int(user):
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
journal: list[str] = []
client = Client(
    socket_path=path,
    helper_command=helper or None,
    exports=lambda: contexts.EXPORTS,
    journal=journal.append,
)
status = Path("/proc/self/status").read_text()
say({"status": status, "modules": [channel.__name__, contexts.__name__]})
for line in sys.stdin:
    name, fields = json.loads(line)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields}
    try:
        result = client.run(load(ACTIONS[name].context, name, values))
        answer = {"result": result}
    except exception.CyborgError as error:
        answer = {"kind": error.kind, **error.fields}
    say(answer | {"journal": journal})
