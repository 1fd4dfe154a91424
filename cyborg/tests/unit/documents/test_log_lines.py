# SPDX-License-Identifier: Apache-2.0
"""``troubleshooting.rst`` shows one example of each INFO line that the service can log."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import cyborg
from cyborg.tests.committed import Part, advice
from cyborg.tests.unit.documents.log_samples import SAMPLES

PACKAGE: Final = Path(cyborg.__file__).parent
PAGE: Final = PACKAGE.parent / "doc" / "source" / "admin" / "troubleshooting.rst"
#: The first part of a module's path, and the heading of its lines. Other parts log nothing, or are
#: no part of the service.
PROCESSES: Final = {
    "service.py": "Every process",
    "conf": "Every process",
    "rpc": "Every process",
    "metrics": "Every process",
    "api": "API",
    "cmd": "API",
    "conductor": "Conductor",
    "agent": "Agent",
    "clients": "Agent, about Placement",
    "drivers": "Agent, about drivers",
}
NOT_THE_SERVICE: Final = {"cli", "testing", "tests"}
LOGGERS: Final = {"LOG", "_LOG"}


def info_formats(tree: ast.AST) -> Iterator[str]:
    """Yield the format of each call that can log at INFO; AssertionError for a computed one."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef):
            continue
        levels = {
            name.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and "INFO" in ast.unparse(node.value)
            for target in node.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call):
                continue
            # A transaction logs after its commit: tx.then(LOG.info, "%s is there", name).
            later = node.args[:1] and ast.unparse(node.args[0]).rpartition(".")[0] in LOGGERS
            call = ast.Call(node.args[0], node.args[1:], []) if later else node
            if ast.unparse(call.func).rpartition(".")[0] in LOGGERS:
                text = logged_at_info(call, levels)
                if text is not None:
                    assert isinstance(text, ast.Constant), ast.unparse(node)
                    assert isinstance(text.value, str), ast.unparse(node)
                    yield text.value


def logged_at_info(call: ast.Call, levels: set[str]) -> ast.expr | None:
    """Return the format of a call that can log at INFO, None of any other call.

    ``levels`` are the variables that can hold the level INFO.
    """
    verb = ast.unparse(call.func).rpartition(".")[2]
    if verb == "info":
        return call.args[0]
    if verb == "log":
        level = ast.unparse(call.args[0])
        if "INFO" in level or level in levels:
            return call.args[1]
    return None


@cache
def formats_by_process() -> dict[str, set[str]]:
    """Return the formats of the INFO lines of the service, by the heading of their process."""
    formats: dict[str, set[str]] = {heading: set() for heading in PROCESSES.values()}
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0]
        if part in NOT_THE_SERVICE:
            continue
        for text in info_formats(ast.parse(path.read_text())):
            assert part in PROCESSES, f"give the log lines of {part} a heading in PROCESSES"
            formats[PROCESSES[part]].add(text)
    return formats


def shown() -> str:
    """Return the text of the page: a heading and a block of examples for each process."""
    parts = []
    for heading, formats in formats_by_process().items():
        lines = sorted((SAMPLES[text] and text % SAMPLES[text]) or text for text in formats)
        if lines:
            block = "\n".join(f"   {line}" for line in lines)
            parts.append(f"{heading}:\n\n.. code-block:: text\n\n{block}\n\n")
    return "\n" + "".join(parts)


def test_each_info_line_has_one_sample() -> None:
    formats = set().union(*formats_by_process().values())
    missing = formats - SAMPLES.keys()
    assert not missing, f"give these formats example arguments in log_samples.py: {sorted(missing)}"
    assert not SAMPLES.keys() - formats, "remove samples of formats that nothing logs"


def test_page_shows_a_sample_of_each_info_line() -> None:
    page = Part(PAGE, r"\.\. log lines, from the source\n", r"\.\. end of log lines\n")
    assert page.is_shown(shown()), advice(
        "The log lines of troubleshooting.rst differ.", "unit/documents/test_log_lines.py"
    )


def test_format_is_found_when_its_level_is_in_a_variable() -> None:
    source = """
def log(good):
    level = logging.INFO if good else logging.ERROR
    LOG.log(level, "Driver %s loaded", "x")
    LOG.log(other, "Not this")
    LOG.warning("Nor this")
    LOG.log(logging.INFO if good else logging.DEBUG, "Device %s")
"""
    assert list(info_formats(ast.parse(source))) == ["Driver %s loaded", "Device %s"]
