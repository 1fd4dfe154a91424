# SPDX-License-Identifier: Apache-2.0
"""Every command by everybody, the suites of the SDK and of tempest, and what the logs say.

They take minutes; the tests of the package above show what the service needs of Keystone.
"""
