# SPDX-License-Identifier: Apache-2.0
"""Attacks over the message bus by somebody who has the transport_url of one host."""
