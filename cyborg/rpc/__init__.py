# SPDX-License-Identifier: Apache-2.0
"""The bus: who may ask whom for what, with errors as data and no tokens."""
