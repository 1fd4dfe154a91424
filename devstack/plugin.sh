#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The devstack plugin: calls lib/ in each phase of stack.sh, unstack.sh and clean.sh.

CYBORG_PLUGIN_DIR=$(dirname "${BASH_SOURCE[0]}")
source "$CYBORG_PLUGIN_DIR/lib/cyborg"
source "$CYBORG_PLUGIN_DIR/lib/pci-sim"

if is_service_enabled cyborg; then
    case "${1:-}/${2:-}" in
        stack/pre-install)
            fetch_cyborg_client
            ;;
        stack/install)
            echo_summary "Installing Cyborg"
            install_cyborg
            build_pci_sim
            ;;
        stack/post-config)
            echo_summary "Configuring Cyborg"
            configure_cyborg
            configure_neutron_for_cyborg
            configure_placement_for_cyborg
            create_cyborg_accounts
            load_pci_sim
            configure_nova_for_pci_sim
            ;;
        stack/extra)
            echo_summary "Starting Cyborg"
            configure_cyborg_for_pci_sim
            init_cyborg
            start_cyborg
            ;;
        stack/test-config)
            configure_tempest_for_cyborg
            configure_tempest_for_pci_sim
            create_pci_sim_flavors
            ;;
        unstack/*)
            stop_cyborg
            ;;
        clean/*)
            cleanup_cyborg
            cleanup_pci_sim
            ;;
    esac
fi
