# SPDX-License-Identifier: Apache-2.0
"""Read YAML files that are lists of entries, each a mapping, with the line of every fault."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import yaml

from cyborg import exception

#: The largest size of a file; a thousand entries have a fifth of it.
_MOST_BYTES = 1 << 20
#: Characters of a value, and items of a list, in an error message.
MOST_SHOWN: Final = 200


class Member(NamedTuple):
    """A member of a mapping, with the line of its key."""

    file: Path
    key: str
    line: int
    node: yaml.Node

    def refuse(self, reason: str) -> NoReturn:
        """Raise exception.ConfigError; ``reason`` is a clause about the member."""
        refuse(self.file, self.line, f"{self.key} {reason}")


def files(directory: Path) -> list[Path]:
    """Return the files ``*.yaml`` of a directory by name, none if it does not exist.

    Raises exception.ConfigError if the directory cannot be listed.
    """
    try:
        return sorted(file for file in directory.iterdir() if file.suffix == ".yaml")
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = f"{directory}: the directory cannot be listed: {error.strerror}."
        raise exception.ConfigError(reason=reason) from None


def nodes(file: Path) -> Iterator[yaml.MappingNode]:
    """Yield the entries of a file, without their values converted.

    Raises exception.ConfigError with one sentence that begins with file and line.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            refuse(file, 1, f"it has more than {_MOST_BYTES} bytes")
        root = yaml.compose(content, loader)
    except OSError as error:
        reason = f"{file}: the file cannot be read: {error.strerror}."
        raise exception.ConfigError(reason=reason) from None
    except RecursionError:
        refuse(file, 1, "it is nested too deeply")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        refuse(file, line, f"it is not YAML: {error.problem}")
    except yaml.YAMLError as error:
        # The loader gives no line for a file that is not text.
        refuse(file, 1, f"it is not YAML: {' '.join(str(error).split())}")
    if root is None:
        return
    if not isinstance(root, yaml.SequenceNode):
        refuse(file, root.start_mark.line + 1, "it is not a list of entries, each after '- '")
    for node in root.value:
        if not isinstance(node, yaml.MappingNode):
            refuse(file, node.start_mark.line + 1, "it is not an entry of the form 'key: value'")
        yield node


def members(
    file: Path,
    node: yaml.MappingNode,
    keys: Collection[str],
    *,
    what: str = "an entry",
    hint: Callable[[str], str] = lambda _key: "",
) -> Iterator[Member]:
    """Yield the members of a mapping.

    ``what`` is the mapping in messages; ``hint`` adds to the message about a key that is none of
    ``keys``. Raises exception.ConfigError for such a key, and for one that is set twice.
    """
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            # Its text may be very long, because of aliases.
            refuse(file, line, f"a key of {what} is not one word")
        key = str(key_node.value)
        if key not in keys:
            reason = f"{key[:MOST_SHOWN]!r} is not a key of {what}, which can have "
            refuse(file, line, f"{reason}{', '.join(keys)}{hint(key)}")
        if key in lines:
            refuse(file, line, f"{key} is also set in line {lines[key]}")
        lines[key] = line
        yield Member(file, key, line, value_node)


def refuse(file: Path, line: int, reason: str) -> NoReturn:
    """Raise exception.ConfigError about a line of a file; ``reason`` is a clause."""
    raise exception.ConfigError(reason=f"{file}:{line}: {reason}.")
