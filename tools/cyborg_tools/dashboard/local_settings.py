# SPDX-License-Identifier: Apache-2.0
"""The settings of Horizon for tests and for quickstart: a file cache, and offline static files.

A copy of this file is in the directory of Horizon's local settings. The environment says where
Keystone is (``CYBORG_HORIZON_KEYSTONE``), in which directory sessions are kept
(``CYBORG_HORIZON_STATE``), what signs them (``CYBORG_HORIZON_SECRET``), and the theme
(``CYBORG_HORIZON_THEME``): offline compression makes the files of one theme.
"""

import os
import sys
from pathlib import Path

from openstack_dashboard.settings import HORIZON_CONFIG

_STATE = os.environ.get("CYBORG_HORIZON_STATE", str(Path(sys.prefix, "state")))
_THEMES = Path(sys.prefix, "themes")
_THEME = os.environ.get("CYBORG_HORIZON_THEME", "default")

DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
SECRET_KEY = os.environ["CYBORG_HORIZON_SECRET"]
OPENSTACK_KEYSTONE_URL = os.environ.get("CYBORG_HORIZON_KEYSTONE", "http://127.0.0.1:5000/v3")
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
        "LOCATION": _STATE,
    }
}


def _home(user):
    """Return the first page of a user; Horizon's own needs Nova, which is simulated here."""
    if user.is_superuser:
        return "/admin/accelerator_overview/"
    return "/project/accelerators/"


HORIZON_CONFIG["user_home"] = _home
COMPRESS_OFFLINE = True
STATIC_ROOT = str(Path(sys.prefix, f"static-{_THEME}"))
DEFAULT_THEME = _THEME
AVAILABLE_THEMES = [
    ("default", "Default", "themes/default"),
    ("dark", "Dark", str(_THEMES / "dark")),
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
