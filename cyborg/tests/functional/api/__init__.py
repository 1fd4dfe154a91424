# SPDX-License-Identifier: Apache-2.0
"""The tests of the REST API again, with a real conductor behind a bus."""
