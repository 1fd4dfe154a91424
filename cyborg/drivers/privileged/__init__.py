# SPDX-License-Identifier: Apache-2.0
"""The actions on the host that need privileges, and the process that runs them.

``actions`` is the closed set of actions. ``kernel`` is all that an action can use of the machine.
``client`` sends an action from the agent to the privileged process, ``server`` runs it there, and
``contexts`` gives each kind of action its own process with its own capabilities.
"""
