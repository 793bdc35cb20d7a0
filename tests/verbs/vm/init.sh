#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# First process of the guest. Its root becomes the host's, read-only over 9p, with the image's packages
# and a layer in memory above it: what is written there is seen by the guest only and lost with it.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules/order); do
  $b insmod "/modules/$module" || echo "insmod $module failed"
done

# "loose": the guest keeps what it has read, for nobody changes it meanwhile.
nine_p=trans=virtio,version=9p2000.L,msize=512000
lost() { echo "init: $1"; $b poweroff -f; }
$b mount -t 9p -o ro,$nine_p,cache=loose host /host || lost "the host's root cannot be mounted"
$b mount -t 9p -o ro,$nine_p,cache=loose image /image || lost "the image cannot be mounted"
$b mount -t tmpfs tmpfs /upper
$b mkdir /upper/files /upper/work
$b mount -t overlay -o lowerdir=/image:/host,upperdir=/upper/files,workdir=/upper/work overlay /root ||
  lost "there is no overlay file system"
for folder in proc sys dev; do $b mount --move /$folder /root/$folder; done
$b mkdir -p /root/dev/pts /root/dev/shm /root/run/verbs-vm
$b mount -t devpts devpts /root/dev/pts
$b mount -t tmpfs -o mode=1777 shm /root/dev/shm
$b mount -t 9p -o $nine_p,cache=none job /root/run/verbs-vm || lost "the order cannot be mounted"
exec $b switch_root /root /bin/bash /run/verbs-vm/guest.sh
