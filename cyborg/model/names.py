# SPDX-License-Identifier: Apache-2.0
"""The names of this service's processes, as operators and process tables know them."""

API = "cyborg-api"
CONDUCTOR = "cyborg-conductor"
AGENT = "cyborg-agent"
