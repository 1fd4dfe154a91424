# SPDX-License-Identifier: Apache-2.0
"""Files for the directory openstack_dashboard/local/enabled of Horizon."""
