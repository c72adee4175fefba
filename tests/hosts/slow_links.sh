#!/bin/sh
# Inside with_hosts.sh: tests/hosts/slow_links.sh RATE DELAY_MS COMMAND... runs a command where the links of node1 and node2
# send RATE each way, such as 200mbit, and delay each frame by DELAY_MS: a message and its answer pass four of them.
set -eu
rate=$1 delay=$2
shift 2
inputs=$(mktemp -d)
number=1
for host in node1 node2; do
    number=$((number + 1))
    ip link del "to_$host"
    ip netns exec "$host" sleep infinity &
    inside=$!
    mkfifo "$inputs/$host"
    sleep infinity > "$inputs/$host" & # The cable ends with its input.
    sleep 0.5
    "${PYTHON:-python}" "$(dirname "$0")/slow_cable.py" $$ $inside "$delay" 0 "to_$host" < "$inputs/$host" &
    sleep 1
    # With large frames the cable takes less of a core.
    ip link set "to_$host" mtu 9000 master bridge0 up
    ip -n "$host" address add "10.77.0.$number/24" dev eth0
    ip -n "$host" link set eth0 mtu 9000 up
    ip netns exec "$host" tc qdisc add dev eth0 root tbf rate "$rate" burst 512kb latency 400ms
    tc qdisc add dev "to_$host" root tbf rate "$rate" burst 512kb latency 400ms
done
"$@"
