#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# grenade: stop all services of the old release, because it has no RPC with this release.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$BASE_DEVSTACK_DIR/functions"
source "$BASE_DEVSTACK_DIR/stackrc"

CYBORG_DEVSTACK_DIR=$(dirname "$(dirname "${BASH_SOURCE[0]}")")
source "$CYBORG_DEVSTACK_DIR/settings"
source "$CYBORG_DEVSTACK_DIR/lib/cyborg"

set -o xtrace

stop_cyborg
ensure_services_stopped cyborg-api cyborg-conductor cyborg-agent
