# SPDX-License-Identifier: Apache-2.0
"""The REST API for uWSGI, mod_wsgi and their like: ``cyborg.wsgi.api:application``.

The import reads nothing and connects to nothing. Each process reads its configuration at its first
request, after the server has forked (see ``arguments``).
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
from cyborg.model.names import API

LOG = logging.getLogger(__name__)

#: Files with semicolons between them; the same form as in Nova (OS_NOVA_CONFIG_FILES).
FILES: Final = "OS_CYBORG_CONFIG_FILES"
#: The directory of these files; alone it is used like ``/etc/cyborg``.
DIRECTORY: Final = "OS_CYBORG_CONFIG_DIR"
_USUAL: Final = "/etc/cyborg"
#: How often the log tells why requests are refused, in seconds.
_REMINDER: Final = 60.0


class LazyApplication:
    """A WSGI application that is made once, when it is first called.

    ``make`` gets the WSGI environment of the request. While it raises ConfigError, every request
    is answered with 503, the log tells the reason once a minute, and the next request reads the
    configuration again. ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any]], app.WsgiApp],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._app: app.WsgiApp | None = None
        self._reason = ""
        self._logged = 0.0

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Hand the request on."""
        if self._app is None:
            try:
                with self._lock:
                    self._app = self._app or self._make(environ)
            except exception.ConfigError as error:
                self._log(configuration.explained(error, cfg.CONF))
                away = exception.Unavailable(peer="The service", reason="it is not configured")
                refusal: Iterable[bytes] = expose.fault(away, "")(environ, start_response)
                return refusal
        return self._app(environ, start_response)

    def _log(self, reason: str) -> None:
        with self._lock:
            now = self._clock()
            if reason == self._reason and now - self._logged < _REMINDER:
                return
            self._reason, self._logged = reason, now
        LOG.critical(
            "%s answers 503 to every request because its configuration cannot be used: %s "
            "Each request reads the configuration again.",
            API,
            reason,
        )


def arguments(environ: Mapping[str, Any]) -> list[str]:
    """Return the options that name the configuration, in the form of the command line.

    The first of these that is set counts: ``OS_CYBORG_CONFIG_FILES`` and ``OS_CYBORG_CONFIG_DIR``
    (of the request, which mod_wsgi's SetEnv sets, of the process, or of uWSGI's ``env``), then
    ``--config-file`` and ``--config-dir`` in uWSGI's ``pyargv``. Without them the list is empty
    and the usual places are searched. ``sys.argv`` is not read: it may be the server's own.

    Raises ConfigError for a ``pyargv`` that cannot be read.
    """
    # uWSGI as a Python extension sets its variables too late for os.environ.
    pairs = (text.partition("=") for text in _uwsgi("env"))
    process = {**{name: value for name, _, value in pairs}, **os.environ}
    files, directory = (
        str(environ.get(name) or process.get(name, "")).strip() for name in (FILES, DIRECTORY)
    )
    if files:
        names = filter(None, map(str.strip, files.split(";")))
        return [
            word for name in names for word in ("--config-file", _below(directory or _USUAL, name))
        ]
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
    """Return the options for what ``directory`` has; ``cyborg.conf`` where it has nothing."""
    stems = (configuration.PROJECT, API)
    pieces = [directory / f"{stem}.conf.d" for stem in stems]
    found = [file for stem in stems if (file := directory / f"{stem}.conf").exists()]
    options = [word for piece in pieces if piece.is_dir() for word in ("--config-dir", str(piece))]
    if not found and not options:
        found = [directory / f"{configuration.PROJECT}.conf"]
    return [word for file in found for word in ("--config-file", str(file))] + options


def _below(directory: str, name: str) -> str:
    return str(Path(directory) / name)


def _uwsgi(option: str) -> list[str]:
    """Return the values of an option of the uWSGI that runs this process; none elsewhere."""
    value = getattr(sys.modules.get("uwsgi"), "opt", {}).get(option, [])
    values = value if isinstance(value, list) else [value]
    return [one.decode() if isinstance(one, bytes) else str(one) for one in values]


def make(environ: Mapping[str, Any]) -> app.WsgiApp:
    """Configure this process and build its application; raises ConfigError."""
    conf = configuration.prepare(arguments(environ), prog=API)
    with configuration.checked(conf):
        tracing.start(conf, API)
        return app.load(conf)


application = LazyApplication(make)
