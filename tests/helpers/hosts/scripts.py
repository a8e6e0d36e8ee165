"""What the shells inside do before they hold still."""

# Everyone's root: a user namespace in which we are root, and a network with a switch in it.
SWITCH = """
mount -t tmpfs none /run
cat > /run/hosts <<END
$1
END
ip link set lo up
ip link add br0 type bridge forward_delay 0 mcast_snooping 0
ip link set br0 up
echo ready; exec cat
"""

# $1: name. The rest: paths that stay to be seen though they lie in /tmp and the like.
HOST = """
set -e
hostname "$1"; shift
ip link set lo up
mount --make-rprivate /
mount --bind /run/hosts /etc/hosts
mount -t tmpfs none /run
mkdir /run/seen
n=0
for path; do n=$((n + 1)); mkdir /run/seen/$n; mount --rbind "$path" /run/seen/$n; done
for place in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 none $place; done
n=0
for path; do n=$((n + 1)); mkdir -p "$path"; mount --move /run/seen/$n "$path"; done
findmnt -rno TARGET | while read -r place; do
  case $place in /tmp | /var/tmp | /run | /proc | /proc/* | /dev | /dev/*) continue ;; esac
  mount -o remount,bind,ro "$place" 2> /dev/null || true  # some are hidden below others
done
cd /tmp
trap '' CHLD  # orphans are reaped unasked
echo ready; exec cat
"""
