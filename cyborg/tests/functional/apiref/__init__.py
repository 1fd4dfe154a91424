# SPDX-License-Identifier: Apache-2.0
"""The samples of the API reference are what the API answers: each is compared with a run."""
