#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# grenade: verify that a device profile and the devices still exist after the upgrade.
#
# The commands work with every client release: groups as JSON, profiles by UUID.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$TOP_DIR/openrc" admin admin

set -o xtrace

PROFILE=cyborg-grenade
GROUPS_OF_PROFILE='[{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}]'

# devices: print the UUIDs of all devices, in order, in one line
function devices {
    openstack accelerator device list -f value -c uuid | sort | xargs
}

# create: create the profile; save its UUID and those of the devices
function create {
    local uuid
    uuid=$(openstack accelerator device profile create "$PROFILE" "$GROUPS_OF_PROFILE" \
        -f value -c uuid)
    resource_save cyborg profile_uuid "$uuid"
    resource_save cyborg devices "$(devices)"
}

# verify: check that the profile and the devices exist with the same UUIDs
function verify {
    local uuid device now
    uuid=$(resource_get cyborg profile_uuid)
    if [[ "$(openstack accelerator device profile show "$uuid" -f value -c name)" != "$PROFILE" ]]; then
        die $LINENO "Device profile $uuid is not called $PROFILE any more"
    fi
    now=$(devices)
    for device in $(resource_get cyborg devices); do
        if [[ " $now " != *" $device "* ]]; then
            die $LINENO "Device $device is not there any more, only \"$now\""
        fi
    done
}

# destroy: delete the profile, and check that it does not exist any more
function destroy {
    local uuid
    uuid=$(resource_get cyborg profile_uuid)
    openstack accelerator device profile delete "$uuid"
    if openstack accelerator device profile list -f value -c uuid | grep -q "$uuid"; then
        die $LINENO "Device profile $uuid is still there although it was deleted"
    fi
}

case "${1:-}" in
    create | verify | destroy)
        "$1"
        ;;
    early_create | verify_noapi)
        # A profile needs no network, and cannot be verified without the API.
        ;;
    *)
        die $LINENO "grenade's phases are early_create, create, verify, verify_noapi and destroy;" \
            "there is no ${1:-empty one}"
        ;;
esac
