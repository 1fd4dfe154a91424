# SPDX-License-Identifier: Apache-2.0
"""The devices of the cloud, for administrators."""
