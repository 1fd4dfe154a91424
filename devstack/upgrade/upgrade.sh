#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# grenade: install this release over the stopped one, upgrade its database, check, and start.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$TARGET_DEVSTACK_DIR/functions"
source "$TARGET_DEVSTACK_DIR/stackrc"
source "$TARGET_DEVSTACK_DIR/lib/tls"
source "$TARGET_DEVSTACK_DIR/lib/apache"
source "$TARGET_DEVSTACK_DIR/lib/keystone"

CYBORG_UPGRADE_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$CYBORG_UPGRADE_DIR/../settings"
source "$CYBORG_UPGRADE_DIR/../lib/cyborg"

# check_cyborg: exit code 1 means warnings; print them and continue the upgrade
function check_cyborg {
    local status=0
    "$CYBORG_BIN_DIR/cyborg-status" --config-file "$CYBORG_CONF" upgrade check || status=$?
    if [[ $status -gt 1 ]]; then
        die $LINENO "cyborg-status upgrade check ended with $status: correct what it reports" \
            "before the services start"
    fi
}

set -o xtrace

# Directories named from-<release> have the steps for one release only.
upgrade_project cyborg "$CYBORG_UPGRADE_DIR" "$BASE_DEVSTACK_BRANCH" "$TARGET_DEVSTACK_BRANCH"

fetch_cyborg_client
install_cyborg

# The configuration does not change, because the test verifies that it still works. The check is
# last, because it needs the schema of this release. "upgrade" lists what prevents an upgrade.
if is_service_enabled cyborg-cond; then
    "$CYBORG_BIN_DIR/cyborg-dbsync" --config-file "$CYBORG_CONF" upgrade
    "$CYBORG_BIN_DIR/cyborg-dbsync" --config-file "$CYBORG_CONF" online_data_migrations
    check_cyborg
fi

start_cyborg
ensure_services_started cyborg-api cyborg-conductor cyborg-agent
