# SPDX-License-Identifier: Apache-2.0
"""The three daemons for somebody who changes them: on real servers, begun anew at each change."""
