# SPDX-License-Identifier: Apache-2.0
"""The nouns and rules of accelerator life-cycle management: pure values, no I/O."""
