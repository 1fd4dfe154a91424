# SPDX-License-Identifier: Apache-2.0
"""The service as deployment tools run it: their web servers, their files, their command lines."""
