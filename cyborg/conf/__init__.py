# SPDX-License-Identifier: Apache-2.0
"""Configuration of the service: declaration of all options, reading of files, checks at start."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oslo_config import cfg
from oslo_log import log

from cyborg import exception, version
from cyborg.conf import conductor, default, log_limit, opts

LOG = logging.getLogger(__name__)

PROJECT = "cyborg"
#: Errors whose text already names the file that could not be read.
_UNREADABLE = (
    cfg.ConfigFileParseError,
    cfg.ConfigFilesNotFoundError,
    cfg.ConfigFilesPermissionDeniedError,
)


def prepare(
    argv: Sequence[str],
    *,
    prog: str,
    default_config_files: Sequence[str] | None = None,
    conf: cfg.ConfigOpts | None = None,
    logs: Callable[[cfg.ConfigOpts], bool] = lambda _: True,
) -> cfg.ConfigOpts:
    """Read the configuration of the process ``prog``, check all of it, and set up logging.

    ``argv`` is the command line without the program's name. Without ``--config-file`` and
    ``--config-dir`` the function searches ``~/.cyborg``, ``~``, ``/etc/cyborg`` and ``/etc`` for
    ``cyborg.conf``, ``cyborg.conf.d``, and the same names with ``prog`` in place of ``cyborg``.
    With ``default_config_files`` it reads only these files and no directory. If a log directory
    is set, the log file is named after ``prog``. ``conf`` defaults to the global ``cfg.CONF``,
    which oslo.messaging requires. A repeated call discards the values that were read before.
    ``logs`` says whether this command line writes a log; without one, no log file is opened.

    Raises ``exception.ConfigError`` with one sentence that names the option and its value. Wrong
    usage of the command line, ``--help`` and ``--version`` end the process, as argparse does.
    """
    conf = cfg.CONF if conf is None else conf
    # A process of a web server reads the files again after an operator has corrected one.
    conf.clear()
    opts.register_opts(conf)
    log.register_options(conf)
    # This service logs a missing plug-in itself if the plug-in is needed.
    levels = [*log.get_default_log_levels(), "stevedore=ERROR"]
    conf.set_default("default_log_levels", levels)
    only_given = default_config_files is not None
    try:
        conf(
            list(argv),
            project=PROJECT,
            prog=prog,
            version=version.installed(),
            default_config_files=list(default_config_files or ()) if only_given else None,
            default_config_dirs=[] if only_given else None,
        )
    except cfg.Error as fault:
        raise exception.ConfigError(reason=_sentence(fault)) from fault
    # Set up logging first: oslo.config's warnings about deprecated options go to the log.
    with checked(conf):
        if not logs(conf):
            return conf
        # The default of oslo.log for the name of the file is the name of the WSGI server.
        if conf.log_dir and not conf.log_file:
            conf.set_default("log_file", f"{prog}.log")
        try:
            log.setup(conf, PROJECT, version.installed(), fix_eventlet=False)
        except log.LogConfigError as fault:
            raise exception.ConfigError(
                reason=f"Option [DEFAULT] log_config_append cannot be used: {fault}."
            ) from fault
        except OSError as fault:
            raise exception.ConfigError(
                reason=f"Option [DEFAULT] log_dir or log_file cannot be used: {fault}."
            ) from fault
        log_limit.limit()
    return conf


def reread(conf: cfg.ConfigOpts) -> None:
    """Read the files again: options that may change while a process runs take effect, as ``debug``.

    For each other option that has changed, oslo.config logs that it is ignored. Files that cannot
    be read change nothing.
    """
    try:
        conf.mutate_config_files()
    except (cfg.Error, OSError, ValueError) as error:
        LOG.error("The configuration files could not be read again: %s", error)
        return
    LOG.info("Read the configuration files again; debug is %s", "on" if conf.debug else "off")


def explained(error: exception.CyborgError, conf: cfg.ConfigOpts) -> str:
    """Return the text of an error; for a ConfigError also the files that ``conf`` was read from."""
    # ``conf`` has the option config_file only after it was called.
    unread = "config_file" not in conf or isinstance(error.__cause__, _UNREADABLE)
    if unread or not isinstance(error, exception.ConfigError):
        return str(error)
    files = [os.fspath(file) for file in conf.config_file or []]
    for directory in conf.config_dir or []:
        files += [os.fspath(file) for file in sorted(Path(directory).glob("*.conf"))]
    if files:
        return f"{error} Configuration files read: {', '.join(files)}."
    home = Path("~").expanduser()
    directories = ", ".join(
        os.fspath(path) for path in (home / f".{PROJECT}", home, f"/etc/{PROJECT}", "/etc")
    )
    return (
        f"{error} No configuration file was found in {directories}. Name the file with "
        "--config-file."
    )


def validate(conf: cfg.ConfigOpts) -> None:
    """Read every option that is registered on ``conf``, and check options that depend on others.

    oslo.config converts a value only when the value is read. Without this check an invalid value
    would cause an error at its first use, possibly hours after the start.

    Raises ``exception.ConfigError``.
    """
    for name in conf:
        value = read(conf, name, None)
        if isinstance(value, cfg.ConfigOpts.GroupAttr):
            for option in value:
                read(conf, option, name)
    conductor.check(conf)
    default.check(conf)


@contextmanager
def checked(conf: cfg.ConfigOpts) -> Iterator[None]:
    """Check all options at the end of the block, including those that libraries register in it.

    Composition roots build all their objects in this block. Raises ``exception.ConfigError``, also
    for values that a library rejects.
    """
    try:
        yield
    except cfg.Error as fault:
        validate(conf)  # usually raises an error with a better sentence
        raise exception.ConfigError(reason=_sentence(fault)) from fault
    validate(conf)


def read(conf: cfg.ConfigOpts, name: str, group: str | None) -> Any:
    """Return the value of one option, converted to its type, or a group.

    Raises ``exception.ConfigError`` with one sentence that names the option and its value.
    """
    try:
        return conf[name] if group is None else conf[group][name]
    except (cfg.Error, ValueError) as fault:
        # oslo.config reports a failed $substitution as "no such option".
        cause = fault.__context__ if isinstance(fault, cfg.NoSuchOptError) else fault
        reason = str(cause).rpartition(" is not valid: ")[2].rstrip(".")
        raise exception.ConfigError(
            reason=f"Option [{group or 'DEFAULT'}] {name} cannot be "
            f"{_raw(conf, name, group)}: {reason}."
        ) from fault


def _raw(conf: cfg.ConfigOpts, name: str, group: str | None) -> str:
    """Return the value as it is written in the file, for an error message."""
    plain = cfg.ConfigOpts()
    plain.register_opt(cfg.StrOpt(name, secret=True), group=group)
    plain(
        [],
        default_config_files=conf.config_file or [],
        default_config_dirs=conf.config_dir or [],
    )
    try:
        value = plain[name] if group is None else plain[group][name]
    except cfg.Error:
        value = None
    return "what the file contains" if value is None else repr(value)


def _sentence(fault: cfg.Error) -> str:
    """Return the text of an oslo.config error in one line that ends with a full stop."""
    return " ".join(str(fault).split()).rstrip(".") + "."
