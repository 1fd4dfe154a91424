# SPDX-License-Identifier: Apache-2.0
"""Write the OpenAPI document of the latest microversion beside the pages of the API reference."""

import json
from pathlib import Path

from cyborg.api import app, microversion, openapi


def write(sphinx, error):
    """Write the file when the pages are written."""
    if error is None and sphinx.builder.format == "html":
        document = openapi.document(app.NOUNS, microversion.LATEST)
        path = Path(sphinx.outdir) / openapi.FILE
        path.write_text(json.dumps(document, indent=2) + "\n")


def setup(sphinx):
    """Register the step with Sphinx."""
    sphinx.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
