# SPDX-License-Identifier: Apache-2.0
"""The panel of accelerator requests."""

from collections.abc import Callable

import sqlalchemy as sa

from cyborg.db.models import Arq
from dashboard.tests.browser import Browser
from dashboard.tests.cloud import Cloud, Seen

INDEX = "/admin/accelerator_requests/"
