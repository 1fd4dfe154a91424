# SPDX-License-Identifier: Apache-2.0
"""Read YAML files that are lists of entries, each a mapping, with the line of every fault."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from cyborg import exception

#: The largest size of a file; a thousand entries have a fifth of it.
_MOST_BYTES = 1 << 20


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


def refuse(file: Path, line: int, reason: str) -> NoReturn:
    """Raise exception.ConfigError about a line of a file; ``reason`` is a clause."""
    raise exception.ConfigError(reason=f"{file}:{line}: {reason}.")
