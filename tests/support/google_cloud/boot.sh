#!/usr/bin/env bash
# The first process of a machine: makes its file system out of this machine's own and a layer of its own, and becomes its SSH server.
#   boot.sh FOLDER NAME CHECKOUT OUTSIDE
# FOLDER has what the box prepared (keys, hosts, environment, stand-ins of commands); OUTSIDE is the PID namespace that must not be seen.
set -euo pipefail
box="$1" name="$2" checkout="$3" outside="$4"
own="$box/machines/$name" root="$box/machines/$name/root"

mkdir -p "$own/upper" "$own/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$own/upper,workdir=$own/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for folder in dev/shm run tmp var/tmp var/log srv mnt home; do mount -t tmpfs -o mode=1777 own "$root/$folder"; done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"

# Commands of the cluster file end Ray's processes by their names: a machine that saw others' must not take a single command.
seen="$(ls "$root/proc" | grep -c '^[0-9]' || true)"
if [ "$(readlink "$root/proc/1/ns/pid")" = "$outside" ] || [ "$$" != 1 ] || [ "$seen" -gt 8 ]; then
    echo "$name sees processes of others: refused" >&2
    exit 1
fi

hostname "$name"
mkdir -p "$root/run/sshd" "$root/srv/share" "$root/mnt/crossmesh" "$root/home/ubuntu/.ssh" "$root/home/ubuntu/uv/bin"
mount --bind "$box/share" "$root/srv/share"
rmdir "$root/mnt/crossmesh"
: >"$root/etc/resolv.conf"
cp "$box/hosts" "$root/etc/hosts"
echo "127.0.0.1 $name" >>"$root/etc/hosts"
: >"$root/etc/fstab"
sed -i '/^ubuntu:/d' "$root/etc/passwd" "$root/etc/shadow" "$root/etc/group"
echo "ubuntu:x:2000:2000::/home/ubuntu:/bin/bash" >>"$root/etc/passwd"
echo "ubuntu:x:2000:" >>"$root/etc/group"
echo "ubuntu:*:19000:0:99999:7:::" >>"$root/etc/shadow"
rm -f "$root"/etc/profile.d/* "$root/etc/environment"
chmod 711 "$root/root" # Python may be below it.
# On a cluster crossmesh is what Ray sends with a job, never what is installed.
rm -f "$root$checkout"/.venv/lib/python*/site-packages/__editable__.crossmesh*
sed "s#@CHECKOUT@#$checkout#" "$box/commands/uv" >"$root/home/ubuntu/uv/bin/uv"
cp "$box"/commands/{sudo,apt-get,apparmor_parser,modprobe,mount} "$root/usr/local/bin/"
chmod 755 "$root/home/ubuntu/uv/bin/uv" "$root"/usr/local/bin/{sudo,apt-get,apparmor_parser,modprobe,mount}
install -o 2000 -m 600 "$box/admin" "$root/etc/admin_key"
install -m 666 /dev/null "$root/var/log/asked"
mkdir -p "$root/etc/ssh/box" "$root/root/.ssh"
install -m 600 "$box/host_key" "$root/etc/ssh/box/host_key"
cat "$box/admin.pub" "$own/authorized_keys" >"$root/home/ubuntu/.ssh/authorized_keys"
cp "$box/admin.pub" "$root/etc/ssh/box/root_keys"
cp "$root"/etc/skel/.[a-z]* "$root/home/ubuntu/"
chown -R 2000:2000 "$root/home/ubuntu"
cp "$box/authority.pem" "$root/etc/ssl/box.pem"
cat >"$root/etc/ssh/box/config" <<CONFIG
HostKey /etc/ssh/box/host_key
PasswordAuthentication no
UsePAM no
PidFile none
MaxStartups 100
AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/box/root_keys
SetEnv $(tr '\n' ' ' <"$own/environment")
CONFIG
cd "$root" # Nothing of what is outside stays mounted; in a mere chroot there would be no namespaces for the judge's sandbox.
mkdir -p outside
pivot_root . outside
umount -l /outside
exec /usr/sbin/sshd -D -e -f /etc/ssh/box/config
