#!/usr/bin/env bash
# What judges generated code on a cluster's head: the simulator and the sandbox, through apt.
set -euo pipefail
sudo apt-get update -qq
sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq iverilog bubblewrap

# Since 23.10 Ubuntu lets only programs with a profile make user namespaces, which is how the sandbox is made: one for bubblewrap alone.
if [ -e /proc/sys/kernel/apparmor_restrict_unprivileged_userns ]; then
    sudo tee /etc/apparmor.d/crossmesh-bwrap >/dev/null <<'PROFILE'
abi <abi/4.0>,
profile crossmesh-bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
PROFILE
    sudo apparmor_parser --replace /etc/apparmor.d/crossmesh-bwrap
fi
bwrap --ro-bind / / --unshare-all true
