#!/usr/bin/env bash
# Install the Debian packages that the tests of MQTT, of the web page, of the sandbox, of Claude Code's hooks, of PostgreSQL, of
# the proxy and of the chat need. Without them these tests are skipped.
set -u
packages="mosquitto chromium bubblewrap jq nodejs postgresql nginx-light tmux"
if compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null && test -x /usr/sbin/mosquitto && test -x /usr/sbin/nginx && test -x /usr/bin/chromium && test -x /usr/bin/bwrap \
    && command -v jq >/dev/null && command -v node >/dev/null && command -v tmux >/dev/null; then exit 0; fi
by_hand="Some tests will be skipped. To run them too: apt-get install $packages"
command -v apt-get >/dev/null || { echo "$by_hand"; exit 0; }
if test "$(id -u)" = 0; then as_root=(env); elif sudo -n true 2>/dev/null; then as_root=(sudo -n); else echo "$by_hand"; exit 0; fi

# `apt-get install` waits for the package lock with this option, but `apt-get update` does not wait for its own lock.
update() {
    local try
    for try in $(seq 60); do
        output=$("${as_root[@]}" apt-get update -qq 2>&1) && return 0
        grep -q "Could not get lock" <<<"$output" || return 1
        test "$try" = 1 && echo "Waiting for another package manager to finish ..."
        sleep 5
    done
    return 1
}

echo "Installing $packages from Debian ..."
# A failed update is no reason to stop: the package lists on this machine may be recent enough.
update || echo "$output"
output=$("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=600 $packages 2>&1) || { echo "$output" | tail -5; echo "$by_hand"; }
