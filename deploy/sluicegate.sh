#!/bin/sh
# Runs a command of the gateway as the service does: with its user, its environment and its configuration.
set -a
. /etc/sluicegate/environment
GATEWAY_CONFIG=/etc/sluicegate/gateway.yaml
set +a
cd /var/lib/sluicegate
exec runuser -u sluicegate -- /opt/sluicegate/bin/gateway "$@"
