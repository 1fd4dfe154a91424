# SPDX-License-Identifier: Apache-2.0
"""Operations of operators: discovery, drivers, created accelerators, attach and detach."""
