# SPDX-License-Identifier: Apache-2.0
"""Configuration: every option is declared here, read from files once, and checked at start."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oslo_config import cfg
from oslo_log import log

from cyborg import exception, version
from cyborg.conf import conductor, database, log_limit, opts

PROJECT = "cyborg"
#: Errors that name the file which could not be read.
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
) -> cfg.ConfigOpts:
    """Read the configuration of the process ``prog``, check all of it, and set up logging.

    ``argv`` is the command line without the program's name. Without ``--config-file`` and
    ``--config-dir`` the usual places are searched (``~/.cyborg``, ``~``, ``/etc/cyborg``,
    ``/etc``) for ``cyborg.conf``, ``cyborg.conf.d`` and their namesakes of ``prog``; with
    ``default_config_files`` these alone are read, and no directory. Where a log directory is
    set, the log file is named after ``prog``. ``conf`` defaults to the global ``cfg.CONF``, on
    which oslo.messaging insists. What was read before is forgotten: a mended file counts.

    Raises ``exception.ConfigError`` with one sentence that names option and value. Wrong usage
    of the command line, ``--help`` and ``--version`` end the process, as argparse does.
    """
    conf = cfg.CONF if conf is None else conf
    # A web server's process reads it again after a file was mended.
    conf.clear()
    opts.register_opts(conf)
    log.register_options(conf)
    # A plug-in that is missing is told in a sentence of ours, or nobody asked for it.
    levels = [*log.get_default_log_levels(), "stevedore=ERROR"]
    conf.set_default("default_log_levels", levels)
    alone = default_config_files is not None
    try:
        conf(
            list(argv),
            project=PROJECT,
            prog=prog,
            version=version.installed(),
            default_config_files=list(default_config_files or ()) if alone else None,
            default_config_dirs=[] if alone else None,
        )
    except cfg.Error as fault:
        raise exception.ConfigError(reason=_sentence(fault)) from fault
    # Logging first: what oslo.config says about deprecated options belongs there.
    with checked(conf):
        _log(conf, prog)
    return conf


def explained(error: exception.CyborgError, conf: cfg.ConfigOpts) -> str:
    """Return the text of an error; a ConfigError also tells which files ``conf`` was read from."""
    # Only a call of ``conf`` registers the option.
    unread = "config_file" not in conf or isinstance(error.__cause__, _UNREADABLE)
    if unread or not isinstance(error, exception.ConfigError):
        return str(error)
    files = [os.fspath(file) for file in conf.config_file or []]
    for directory in conf.config_dir or []:
        files += [os.fspath(file) for file in sorted(Path(directory).glob("*.conf"))]
    if files:
        return f"{error} Configuration files read: {', '.join(files)}."
    home = Path("~").expanduser()
    places = ", ".join(
        os.fspath(place) for place in (home / f".{PROJECT}", home, f"/etc/{PROJECT}", "/etc")
    )
    return f"{error} No configuration file was found in {places}. Name the file with --config-file."


def validate(conf: cfg.ConfigOpts) -> None:
    """Read every option that is registered on ``conf`` by now, and compare those that depend.

    oslo.config converts a value only when it is asked for; a typing error in a file would
    otherwise show at first use, hours after the start.

    Raises ``exception.ConfigError``.
    """
    for name in conf:
        found = read(conf, name, None)
        if isinstance(found, cfg.ConfigOpts.GroupAttr):
            for inner in found:
                read(conf, inner, name)
    conductor.check(conf)
    database.check(conf)


@contextmanager
def checked(conf: cfg.ConfigOpts) -> Iterator[None]:
    """Check the options that libraries register inside; composition roots build everything there.

    Raises ``exception.ConfigError``, also for what a library itself refuses.
    """
    try:
        yield
    except cfg.Error as fault:
        validate(conf)  # knows a better sentence, as a rule
        raise exception.ConfigError(reason=_sentence(fault)) from fault
    validate(conf)


def read(conf: cfg.ConfigOpts, name: str, group: str | None) -> Any:
    """Return the value of one option (or a group) as its type understands it.

    Raises ``exception.ConfigError`` with one sentence that names option and value.
    """
    try:
        return conf[name] if group is None else conf[group][name]
    except (cfg.Error, ValueError) as fault:
        # oslo.config hides a failed $substitution behind "no such option".
        known = fault.__context__ if isinstance(fault, cfg.NoSuchOptError) else fault
        reason = str(known).rpartition(" is not valid: ")[2].rstrip(".")
        raise exception.ConfigError(
            reason=f"Option [{group or 'DEFAULT'}] {name} cannot be "
            f"{_raw(conf, name, group)}: {reason}."
        ) from fault


def _raw(conf: cfg.ConfigOpts, name: str, group: str | None) -> str:
    """Return the value as it was written, for the sentence that refuses it."""
    plain = cfg.ConfigOpts()
    plain.register_opt(cfg.StrOpt(name, secret=True), group=group)
    plain(
        [],
        default_config_files=conf.config_file or [],
        default_config_dirs=conf.config_dir or [],
    )
    try:
        found = plain[name] if group is None else plain[group][name]
    except cfg.Error:
        found = None
    return "what is written there" if found is None else repr(found)


def _log(conf: cfg.ConfigOpts, prog: str) -> None:
    """Set up oslo.log; its own name for the file would be that of the WSGI server's script."""
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


def _sentence(fault: cfg.Error) -> str:
    """Return what oslo.config has to say, in one line that ends with a full stop."""
    return " ".join(str(fault).split()).rstrip(".") + "."
