#!/bin/sh
# Runs a command where the hosts node1, node2 and login are: tests/hosts/with_hosts.sh FOLDER COMMAND...
#
# A host is a network namespace with an address on one bridge, a host name and an sshd of its own; all share the files of
# this machine. `on HOST COMMAND...` runs a command on a host. If Slurm is installed, login has a slurmctld, and each node
# a slurmd. FOLDER gets keys, configuration and logs. Namespaces and processes end with COMMAND. HOSTS=8 makes node1 to
# node8.
#
# Needs root, iproute2 and openssh-server; for Slurm munge, slurmctld, slurmd and slurm-client.
set -eu

if [ "${WITH_HOSTS_INSIDE:-}" != 1 ]; then
    # Mounts, network and processes of its own, which end with it. Outside, only the empty folders below are left.
    export WITH_HOSTS_INSIDE=1
    exec unshare --mount --net --pid --fork --kill-child --mount-proc sh "$0" "$@"
fi

folder=$(realpath "$1")
shift
nodes=$(seq -f node%g "${HOSTS:-2}")
rm -rf "$folder/ssh" "$folder/slurm"
mkdir -p "$folder/ssh" "$folder/log" "$folder/bin" /run/netns /etc/netns /run/sshd
mount -t tmpfs hosts /run/netns
mount -t tmpfs hosts /etc/netns
ip link set lo up

cat > "$folder/bin/on" <<'ON'
#!/bin/sh
# on HOST COMMAND...: runs a command on a host.
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
ON
chmod 755 "$folder/bin/on"
PATH=$folder/bin:$PATH

set_up_network() {
    ip link add bridge0 type bridge
    ip link set bridge0 up
    echo '127.0.0.1 localhost' > "$folder/hosts"
    number=0
    for host in login $nodes; do
        number=$((number + 1))
        echo "10.77.0.$number $host" >> "$folder/hosts"
        ip netns add "$host"
        ip -n "$host" link set lo up
        ip link add "to_$host" type veth peer name eth0 netns "$host"
        ip link set "to_$host" master bridge0 up
        ip -n "$host" address add "10.77.0.$number/24" dev eth0
        ip -n "$host" link set eth0 up
        # `ip netns exec` mounts these files over those in /etc.
        mkdir -p "/etc/netns/$host/ssh"
        ln -s "$folder/hosts" "/etc/netns/$host/hosts"
        printf 'Host *\n  IdentityFile %s/ssh/id\n  UserKnownHostsFile %s/ssh/known_hosts\n' \
            "$folder" "$folder" > "/etc/netns/$host/ssh/ssh_config"
    done
}

start_sshd() {
    ssh-keygen -q -t ed25519 -N '' -f "$folder/ssh/id"
    ssh-keygen -q -t ed25519 -N '' -f "$folder/ssh/host_key"
    printf '%s\n' "HostKey $folder/ssh/host_key" "AuthorizedKeysFile $folder/ssh/id.pub" 'StrictModes no' \
        'PermitRootLogin prohibit-password' 'PasswordAuthentication no' 'UsePAM no' 'PidFile none' \
        > "$folder/ssh/sshd_config"
    for host in $nodes; do
        on "$host" /usr/sbin/sshd -f "$folder/ssh/sshd_config" -E "$folder/log/sshd_$host.log"
        printf '%s %s\n' "$host" "$(cut -d ' ' -f 1,2 "$folder/ssh/host_key.pub")" >> "$folder/ssh/known_hosts"
    done
}

start_slurm() {
    mkdir -p "$folder/slurm/state"
    chmod 755 "$folder" "$folder/slurm"
    dd if=/dev/urandom of="$folder/slurm/munge.key" bs=128 count=1 status=none
    chmod 400 "$folder/slurm/munge.key"
    # The paths of sockets have a length limit, so those of munge and Slurm are not in FOLDER.
    mkdir -p /run/munge
    mount -t tmpfs hosts /run/munge
    mkdir -p /run/munge/tmp
    munged --force --key-file="$folder/slurm/munge.key" --socket=/run/munge/hosts.socket \
        --pid-file=/run/munge/munged.pid --log-file="$folder/log/munged.log" --seed-file=/run/munge/seed
    cat > "$folder/slurm/slurm.conf" <<CONF
ClusterName=hosts
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/hosts.socket
StateSaveLocation=$folder/slurm/state
SlurmdSpoolDir=/run/munge/%n
SlurmctldPidFile=$folder/slurm/slurmctld.pid
SlurmdPidFile=$folder/slurm/slurmd_%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd_%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
MailProg=/bin/true
KillWait=30
TmpFS=/run/munge/tmp
NodeName=node[1-${HOSTS:-2}] CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
CONF
    echo 'CgroupPlugin=cgroup/v1' > "$folder/slurm/cgroup.conf"
    export SLURM_CONF="$folder/slurm/slurm.conf"
    on login slurmctld -i
    for host in $nodes; do
        mkdir "/run/munge/$host"
        # PMIx has a folder with the same name on each host.
        on "$host" sh -c 'mount -t tmpfs hosts /run/munge/tmp && exec slurmd -N "$0"' "$host"
    done
    for _ in $(seq 100); do
        [ "$(on login sinfo --noheader --states=idle --format=%D 2> /dev/null)" != "${HOSTS:-2}" ] || return 0
        sleep 0.2
    done
    echo "with_hosts.sh: Slurm's nodes are not idle after 20 seconds; $folder/log has what its programs say" >&2
    on login sinfo >&2
    return 1
}

set_up_network
start_sshd
if command -v slurmctld slurmd munged srun > /dev/null; then
    start_slurm
fi
code=0
"$@" || code=$?
exit $code
