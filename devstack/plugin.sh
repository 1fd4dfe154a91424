#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The devstack plugin: hands each phase of stack.sh on to lib/cyborg.

CYBORG_PLUGIN_DIR=$(dirname "${BASH_SOURCE[0]}")
source "$CYBORG_PLUGIN_DIR/lib/cyborg"

if is_service_enabled cyborg; then
    case "$1/${2:-}" in
        stack/install)
            echo_summary "Installing Cyborg"
            install_cyborg
            ;;
        stack/post-config)
            echo_summary "Configuring Cyborg"
            configure_cyborg
            create_cyborg_accounts
            ;;
        stack/extra)
            echo_summary "Starting Cyborg"
            init_cyborg
            start_cyborg
            ;;
        stack/test-config)
            configure_tempest_for_cyborg
            ;;
        unstack/*)
            stop_cyborg
            ;;
        clean/*)
            cleanup_cyborg
            ;;
    esac
fi
