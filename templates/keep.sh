#!/bin/sh
# keep.sh sbcast|copy IMAGE COPY: creates the folder for one node's copy of the image, then copies the image or checks
# sbcast's copy. At the end of its input or at a signal it removes the folder. It prints `made`, `ready` or `failed` with its node.
# It locks the folder (hpcml/node/scratch.py): if keep.sh was killed, the next run removes its folder.
mode=$1 image=$2 copy=$3 folder=${3%/*} node=${HPCML_NODE:-local}
place=${folder%/*}
umask 077
fail() { rm -rf "$folder"; echo "failed $node: $1|$2"; exit 1; }
trap 'rm -rf "$folder"; exit 143' HUP INT TERM
trap '' USR1 USR2
size=$(stat -Lc %s "$image" 2>/dev/null) || fail "the image does not exist: $image" "Put it on a file system that all nodes share."
# loose PATH: print each folder or link on the path PATH that another user could replace.
loose() {
  at=$1
  while [ -n "$at" ] && [ "$at" != / ]; do
    find "$at" -maxdepth 0 \( ! -user 0 ! -user "$(id -u)" -o ! -type l \( -perm -0020 -o -perm -0002 \) ! -perm -1000 \)
    at=${at%/*}
  done
}
mkdir "$folder" 2>/dev/null || {
  folder=/dev/null/none   # do not remove a folder of others
  fail "no folder can be created in $place" "Set runtime.stage_to to a folder on the nodes' own disks with write permission."
}
open=$(loose "$place"; loose "$(cd "$place" && pwd -P)")
[ -z "$open" ] || fail "other users may replace the contents of $(echo "$open" | head -n 1)" \
  "Set runtime.stage_to to a folder that you or root own. Others must not have write access, or the sticky bit must be set; also in all folders above."
free=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
[ "$free" -gt $((size / 1024)) ] ||
  fail "$((free / 1024)) MiB are free in $place, but the image has $((size / 1048576))" \
    "Set runtime.stage_to to a folder with more space, or runtime.stage = 'none'."
if command -v flock >/dev/null; then
  : >"$folder/.lives"
  exec 9>>"$folder/.lives"
  flock -s 9
  uname -n >&9
  for old in "$place"/hpcml-[0-9]*-????????????????; do
    if [ -d "$old" ] && [ ! -L "$old" ] && [ -O "$old" ] && [ ! -L "$old/.lives" ] && [ -O "$old/.lives" ] &&
      [ "$(cat "$old/.lives")" = "$(uname -n)" ]; then flock -n "$old/.lives" rm -rf "$old"; fi
  done
fi
if [ "$mode" = copy ]; then
  cp -- "$image" "$copy" 2>"$folder/words" &
  wait $! || fail "the image cannot be copied to $place: $(sed -n 's/.*: //;$p' "$folder/words")" \
    "Set runtime.stage_to to another folder, or runtime.stage = 'none'."
else
  echo "made $node"
  read -r word; [ "$word" = go ] || { rm -rf "$folder"; exit 0; }
fi
[ "$(stat -c %s "$copy" 2>/dev/null)" = "$size" ] ||
  fail "the copy in $place is not as large as the image" "Check that it is on the node's own disk. Set runtime.stage_to, or runtime.stage = 'none'."
echo "ready $node"
read -r word   # the run's end
rm -rf "$folder"
