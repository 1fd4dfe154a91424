# SPDX-License-Identifier: Apache-2.0
"""What the documents show is checked: each of their blocks by the rule of its kind."""
