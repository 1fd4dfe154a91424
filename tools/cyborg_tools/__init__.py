# SPDX-License-Identifier: Apache-2.0
"""What the commands in ``tools`` run: bench, chaos, dev, quickstart and walkthrough."""
