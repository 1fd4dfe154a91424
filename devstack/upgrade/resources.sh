#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# grenade: a device profile and the devices that were there before the upgrade are there after it.
#
# The plain commands of every client release are used: the groups as JSON, profiles by uuid.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$TOP_DIR/openrc" admin admin

set -o xtrace

PROFILE=cyborg-grenade
GROUPS_OF_PROFILE='[{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}]'

# devices: the uuids of all devices, in order, in one line
function devices {
    openstack accelerator device list -f value -c uuid | sort | xargs
}

# create: make the profile; remember it, and the devices
function create {
    local uuid
    uuid=$(openstack accelerator device profile create "$PROFILE" "$GROUPS_OF_PROFILE" \
        -f value -c uuid)
    resource_save cyborg profile_uuid "$uuid"
    resource_save cyborg devices "$(devices)"
}

# verify: all of it is there under the same uuids
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

# destroy: delete the profile, and see that it is gone
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
        # A profile needs no network, and nothing of it shows without the API.
        ;;
    *)
        die $LINENO "grenade's phases are early_create, create, verify, verify_noapi and destroy;" \
            "there is no ${1:-empty one}"
        ;;
esac
