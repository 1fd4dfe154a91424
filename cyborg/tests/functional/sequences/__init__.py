# SPDX-License-Identifier: Apache-2.0
"""The page of sequence diagrams shows what happens: each is compared with a recorded run."""
