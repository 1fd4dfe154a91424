# SPDX-License-Identifier: Apache-2.0
"""Checks blocks that hold data or programs: JSON, YAML, Python, SQL and PromQL.

Each function raises ValueError with a sentence that names what is wrong.
"""

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import os_resource_classes
import sqlalchemy as sa
import yaml
from sqlalchemy.dialects import sqlite

from cyborg import exception
from cyborg.db.models import METADATA
from cyborg.model.device_profile import Limits, parse_groups, parse_name
from cyborg.tests.fixtures import pages

#: What Prometheus makes of one metric.
_SUFFIXES = ("_bucket", "_count", "_sum", "_total")
#: Statements about a whole server, which no SQLite could explain.
_SERVER = re.compile(r"(CREATE|DROP) (DATABASE|USER)|GRANT|ALTER (DATABASE|USER|ROLE)|SET|SHOW")


def as_json(text: str) -> None:
    """JSON; what looks like a device profile is one that the API would store."""
    _profiles(parsed(text))


def parsed(text: str) -> Any:
    """JSON of any content."""
    try:
        return json.loads(text)
    except ValueError as fault:
        raise ValueError(f"not JSON: {fault}") from fault


def as_yaml(text: str) -> None:
    """YAML, of one or several documents."""
    try:
        list(yaml.safe_load_all(text))
    except yaml.YAMLError as fault:
        raise ValueError(f"not YAML: {fault}") from fault


def as_python(text: str) -> None:
    """A module, or a part of one, that compiles."""
    try:
        compile(text, "document", "exec")
    except SyntaxError as fault:
        raise ValueError(f"not Python: {fault}") from fault


def as_sql(text: str) -> None:
    """Statements whose tables and columns there are."""
    for statement in (one.strip() for one in text.split(";")):
        if statement and not _SERVER.match(statement):
            try:
                _schema().execute(f"EXPLAIN {statement}")
            except sqlite3.Error as fault:
                raise ValueError(f"{statement}: {fault}") from fault


def as_promql(text: str) -> None:
    """Expressions about metrics that are shown."""
    shown = {
        one.name for one in (*pages.API_METRICS, *pages.CONDUCTOR_METRICS, *pages.AGENT_METRICS)
    }
    for name in set(re.findall(r"\bcyborg_\w+", text)):
        if not {name, *(name.removesuffix(end) for end in _SUFFIXES)} & shown:
            raise ValueError(f"there is no metric {name}")


@cache
def _schema() -> sqlite3.Connection:
    """The newest schema, in memory and without a row."""
    found = sqlite3.connect(":memory:", check_same_thread=False)
    for table in METADATA.sorted_tables:
        found.execute(str(sa.schema.CreateTable(table).compile(dialect=sqlite.dialect())))
    return found


def _profiles(value: Any) -> None:
    if isinstance(value, Mapping) and isinstance(value.get("groups"), list):
        _named(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping) and _is_group(one) for one in value):
            profile_groups(value)
        else:
            for one in value:
                _profiles(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            _profiles(one)


def _is_group(value: Mapping[str, Any]) -> bool:
    return any(key.startswith(("resources:", "trait:")) for key in value)


def _named(profile: Mapping[str, Any]) -> None:
    profile_groups(profile["groups"])
    if "name" in profile:
        try:
            parse_name(profile["name"])
        except exception.Invalid as fault:
            raise ValueError(str(fault)) from fault


def profile_groups(groups: Any) -> None:
    """Groups of a device profile that the API takes."""
    try:
        parse_groups(groups, frozenset(os_resource_classes.STANDARDS), Limits())
    except exception.Invalid as fault:
        raise ValueError(str(fault)) from fault
