# SPDX-License-Identifier: Apache-2.0
"""Check Cyborg on the NVIDIA GPUs of a real machine; see ``tools/metal``."""
