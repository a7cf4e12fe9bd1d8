#!/usr/bin/env bash
# Written by stratadvisor "0.1.0" for plan "PLAN_DIGEST" ("fsdp2"). README.md tells how to use it.
#
# RAY_ADDRESS=http://HEAD:8265 STRATADVISOR_RUN_DIR=/shared/run bash submit.sh [options of train_ray.py]

set -euo pipefail

here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
bundle="$(CDPATH='' cd -- "$here/../.." && pwd)"
fail() {
    printf 'submit.sh: %s\n' "$*" >&2
    exit 2
}
[[ -f $bundle/train_config.json ]] || fail "$bundle is not the bundle; leave this folder where it was written"
[[ -n ${RAY_ADDRESS:-} ]] || fail "set RAY_ADDRESS to the address of the cluster's jobs, such as http://HEAD:8265"
[[ -n ${STRATADVISOR_RUN_DIR:-} ]] ||
    fail "set STRATADVISOR_RUN_DIR to a folder that every node of the cluster can write, for metrics and checkpoints"
# Ray sends the bundle itself to every node; what earlier runs left in run/ stays here.
environment="$("${PYTHON:-python3}" -c 'import json, os
print(json.dumps({"env_vars": {"STRATADVISOR_RUN_DIR": os.environ["STRATADVISOR_RUN_DIR"]}, "excludes": ["/run/"]}))')"
exec "${RAY:-ray}" job submit --address "$RAY_ADDRESS" --working-dir "$bundle" --runtime-env-json "$environment" \
    -- python targets/ray/train_ray.py "$@"
