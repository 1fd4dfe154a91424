# SPDX-License-Identifier: Apache-2.0
"""The REST API for WSGI servers such as uWSGI and mod_wsgi: ``cyborg.wsgi.api:application``.

Importing this module reads no file and opens no connection. Each process reads its configuration
at its first request, after the server has forked (see ``arguments``).
"""

import argparse
import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception, tracing
from cyborg.api import app, expose
from cyborg.api.framework import WsgiApp
from cyborg.model.process import API
from cyborg.rpc.transport import warn_if_unsigned

LOG = logging.getLogger(__name__)

#: Configuration files, separated by semicolons, as in Nova (OS_NOVA_CONFIG_FILES).
FILES: Final = "OS_CYBORG_CONFIG_FILES"
#: The directory of these files; without FILES it replaces ``/etc/cyborg``.
DIRECTORY: Final = "OS_CYBORG_CONFIG_DIR"
_DEFAULT_DIRECTORY: Final = "/etc/cyborg"
#: How often to log the reason for rejected requests, in seconds.
_LOG_INTERVAL: Final = 60.0


class LazyApplication:
    """A WSGI application that is built once, at the first request.

    ``make`` gets the WSGI environment of the request. While it raises ConfigError, each request
    returns 503, the reason is logged once a minute, and the next request reads the configuration
    again. ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any]], WsgiApp],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._app: WsgiApp | None = None
        self._reason = ""
        self._logged = 0.0

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Build the application if necessary, and pass the request to it."""
        if self._app is None:
            try:
                with self._lock:
                    self._app = self._app or self._make(environ)
            except exception.ConfigError as error:
                self._log(configuration.explained(error, cfg.CONF))
                fault = exception.Unavailable(peer="The service", reason="it is not configured")
                refusal: Iterable[bytes] = expose.fault(fault, "")(environ, start_response)
                return refusal
        return self._app(environ, start_response)

    def _log(self, reason: str) -> None:
        with self._lock:
            now = self._clock()
            if reason == self._reason and now - self._logged < _LOG_INTERVAL:
                return
            self._reason, self._logged = reason, now
        LOG.critical(
            "%s answers 503 to every request because its configuration cannot be used: %s "
            "Each request reads the configuration again.",
            API,
            reason,
        )


def arguments(environ: Mapping[str, Any]) -> list[str]:
    """Return the command line options that name the configuration.

    The first of these that is set applies: ``OS_CYBORG_CONFIG_FILES`` and ``OS_CYBORG_CONFIG_DIR``
    (in the request, where SetEnv of mod_wsgi sets them, in the process, or in ``env`` of uWSGI),
    then ``--config-file`` and ``--config-dir`` in ``pyargv`` of uWSGI. Without them the list is
    empty, and oslo.config searches the default directories. ``sys.argv`` is not read, because it
    can belong to the server.

    Raises ConfigError if ``pyargv`` cannot be parsed.
    """
    # As a Python extension, uWSGI sets its variables too late for os.environ.
    pairs = (text.partition("=") for text in _uwsgi("env"))
    process = {**{name: value for name, _, value in pairs}, **os.environ}
    files, directory = (
        str(environ.get(name) or process.get(name, "")).strip() for name in (FILES, DIRECTORY)
    )
    if files:
        place = directory or _DEFAULT_DIRECTORY
        names = filter(None, map(str.strip, files.split(";")))
        return [word for name in names for word in ("--config-file", str(Path(place) / name))]
    if directory:
        return _in_directory(Path(directory))
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config-file", action="append", default=[])
    parser.add_argument("--config-dir", action="append", default=[])
    text = (_uwsgi("pyargv") or [""])[-1]
    try:
        given, _ = parser.parse_known_args(shlex.split(text))
    except (argparse.ArgumentError, ValueError) as fault:
        raise exception.ConfigError(
            reason=f"uWSGI's pyargv = {text} cannot be used: {fault}."
        ) from fault
    return [
        *(word for file in given.config_file for word in ("--config-file", file)),
        *(word for place in given.config_dir for word in ("--config-dir", place)),
    ]


def _in_directory(directory: Path) -> list[str]:
    """Return the options for the files in ``directory``, or for ``cyborg.conf`` if it has none."""
    stems = (configuration.PROJECT, API)
    places = [directory / f"{stem}.conf.d" for stem in stems]
    files = [file for stem in stems if (file := directory / f"{stem}.conf").exists()]
    options = [word for place in places if place.is_dir() for word in ("--config-dir", str(place))]
    if not files and not options:
        files = [directory / f"{configuration.PROJECT}.conf"]
    return [word for file in files for word in ("--config-file", str(file))] + options


def _uwsgi(option: str) -> list[str]:
    """Return the values of a uWSGI option; empty if uWSGI does not run this process."""
    value = getattr(sys.modules.get("uwsgi"), "opt", {}).get(option, [])
    values = value if isinstance(value, list) else [value]
    return [item.decode() if isinstance(item, bytes) else str(item) for item in values]


def make(environ: Mapping[str, Any]) -> WsgiApp:
    """Configure this process and return its application; raises ConfigError."""
    conf = configuration.prepare(arguments(environ), prog=API)
    with configuration.checked(conf):
        tracing.start(conf, API)
        application = app.load(conf)
    warn_if_unsigned(conf)
    return application


application = LazyApplication(make)
