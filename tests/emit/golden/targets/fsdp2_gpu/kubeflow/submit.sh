#!/usr/bin/env bash
# Written by stratadvisor "0.1.0" for plan "PLAN_DIGEST" ("fsdp2"). README.md tells how to use it.
#
# bash submit.sh [options of kubectl create]

set -euo pipefail

here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec kubectl create -f "$here/trainjob.yaml" "$@"
