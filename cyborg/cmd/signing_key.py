# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-signing-key`` program: create, replace and derive the keys that sign messages.

It works on files only, and reads no configuration. The exit status is 0, or 1 if nothing was
changed.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cyborg import exception
from cyborg.rpc import keys
from cyborg.rpc.keys import API, CONTROLLER, HOST, MASTER, Keys

PROG: Final = "cyborg-signing-key"
_COPY: Final = (
    "Copy {file} to every controller that runs cyborg-conductor (owner: the user of the service, "
    "mode 0600), and to no other host."
)
_DERIVE: Final = (
    f"Then run '{PROG} derive' for every host with an agent, and replace the file of that host."
)


class _Refused(Exception):
    """Nothing was changed; the text says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print what to do next; return the exit status."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    try:
        print(arguments.run(arguments))
    except (_Refused, exception.ConfigError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{PROG}: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
    else:
        return 0
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROG, description="Manage the keys that sign messages on the bus (message_signing)."
    )
    commands = parser.add_subparsers(title="commands", required=True)
    for run, text in (
        (create, "Create the file of the master keys, with one key."),
        (add, "Add a master key that verifies, but does not sign yet."),
        (promote, "Let the newest master key sign."),
        (remove, "Remove a master key; what it has signed is refused from then on."),
        (revoke, "Revoke the keys of one host, which somebody else may have."),
        (derive, "Write the file of one host, or of an API without a conductor."),
        (show, "List the IDs of the keys; the first one signs."),
    ):
        command = commands.add_parser(run.__name__, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("file", type=Path, help="File of the master keys of the controllers.")
        if run is remove:
            command.add_argument("id", help="ID of the key, as the command show prints it.")
        if run is revoke:
            command.add_argument(
                "--host", required=True, help="The option [DEFAULT] host of the agent."
            )
        if run is derive:
            owner = command.add_mutually_exclusive_group(required=True)
            owner.add_argument("--host", help="The option [DEFAULT] host of the agent.")
            owner.add_argument(
                "--api", action="store_true", help="For a host with cyborg-api and no conductor."
            )
            command.add_argument(
                "--output", type=Path, required=True, help="File to write; it is replaced."
            )
    return parser


def create(arguments: argparse.Namespace) -> str:
    """Create the file of the master keys; refuse if it exists."""
    file: Path = arguments.file
    if file.exists():
        raise _Refused(f"{file} exists. The command add puts another key into it.")
    keys.write(file, Keys(MASTER, CONTROLLER, (keys.generate(),)))
    return (
        f"Created {file}.\n{_COPY.format(file=file)}\n{_DERIVE}\nSet [DEFAULT] "
        "message_signing_key_file on all hosts and restart the processes. Then set [DEFAULT] "
        "message_signing."
    )


def add(arguments: argparse.Namespace) -> str:
    """Append a new master key, which verifies but does not sign."""
    master = _master(arguments.file)
    new = keys.generate(key.id for key in master.keys)
    keys.write(arguments.file, replace(master, keys=(*master.keys, new)))
    return (
        f"Added the key {new.id}. It verifies messages and does not sign yet.\n"
        f"{_COPY.format(file=arguments.file)}\n{_DERIVE}\n"
        f"When every host has its new file, run '{PROG} promote'."
    )


def promote(arguments: argparse.Namespace) -> str:
    """Put the newest master key first, so that it signs."""
    master = _master(arguments.file)
    *others, newest = master.keys
    if not others:
        raise _Refused(f"{newest.id} is the only key in {arguments.file}. Run '{PROG} add' first.")
    keys.write(arguments.file, replace(master, keys=(newest, *others)))
    return (
        f"The key {newest.id} signs messages now.\n{_COPY.format(file=arguments.file)}\n{_DERIVE}\n"
        f"WARNING: A host whose file does not have the key {newest.id} yet refuses all requests of "
        "the conductors from now on; it had to get its file before. 'cyborg-status check' shows "
        "such agents as 'not receiving'.\n"
        f"When every host has its new file, run '{PROG} remove' for the old key."
    )


def remove(arguments: argparse.Namespace) -> str:
    """Remove a master key, but never the one that signs."""
    master = _master(arguments.file)
    if arguments.id not in [key.id for key in master.keys]:
        raise _Refused(f"{arguments.file} has no key {arguments.id}.")
    if arguments.id == master.keys[0].id:
        raise _Refused(f"The key {arguments.id} signs messages. Run '{PROG} promote' first.")
    left = tuple(key for key in master.keys if key.id != arguments.id)
    keys.write(arguments.file, replace(master, keys=left))
    return f"Removed the key {arguments.id}.\n{_COPY.format(file=arguments.file)}\n{_DERIVE}"


def revoke(arguments: argparse.Namespace) -> str:
    """Revoke the keys of a host that follow from the present master keys."""
    file: Path = arguments.file
    master, host = _master(file), arguments.host
    if not host:
        raise _Refused("--host must not be empty.")
    revoked = {(host, key.id) for key in master.keys}
    keys.write_revoked(file, keys.read_revoked(file) | revoked)
    listing = keys.revoked_file(file)
    return (
        f"Revoked the keys of the host {host}: {', '.join(key.id for key in master.keys)}.\n"
        f"Copy {listing} to every controller, beside its file of keys (owner: the user of the "
        "service, mode 0600). Conductors refuse the host from then on.\n"
        f"To admit the host again, run '{PROG} add', copy the master file, derive the keys of the "
        f"host, and run '{PROG} promote' and '{PROG} derive' for the other hosts."
    )


def derive(arguments: argparse.Namespace) -> str:
    """Write the file of a host or of an API."""
    kind, owner = (API, CONTROLLER) if arguments.api else (HOST, arguments.host)
    if kind == HOST and not owner:
        raise _Refused("--host must not be empty.")
    output: Path = arguments.output
    if output.exists() and keys.read(output).kind == MASTER:
        raise _Refused(f"{output} holds master keys, which would be lost.")
    keys.write(output, _master(arguments.file).derived(kind, owner))
    place = f"the host {owner}" if owner else "the host of the API"
    return (
        f"Wrote {output}.\nMove it to {place} as its [DEFAULT] message_signing_key_file (owner: "
        "the user of the service, mode 0600), over a connection that nobody else can read."
    )


def show(arguments: argparse.Namespace) -> str:
    """Return the kind of a file, its host and the IDs of its keys."""
    content = keys.read(arguments.file)
    of_host = f" of the host {content.owner}" if content.owner else ""
    lines = [f"{content.kind} keys{of_host}:"]
    lines += [f"{key.id}{'' if number else ' (signs)'}" for number, key in enumerate(content.keys)]
    lines += [
        f"{key_id} of the host {host} is revoked"
        for host, key_id in sorted(keys.read_revoked(arguments.file))
    ]
    return "\n".join(lines)


def _master(file: Path) -> Keys:
    content = keys.read(file)
    if content.kind != MASTER:
        raise _Refused(f"{file} holds no master keys, but keys that were derived from them.")
    return content


if __name__ == "__main__":
    sys.exit(main())
