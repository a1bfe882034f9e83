#!/bin/sh
# keep.sh sbcast|copy IMAGE COPY: makes the folder of one node's copy of the image, copies it or checks what sbcast has
# copied, and removes the folder when its input ends or a signal comes. It says `made`, `ready` or `failed` with its node.
mode=$1 image=$2 copy=$3 folder=${3%/*} node=${SLURMD_NODENAME:-local}
place=${folder%/*}
umask 077
fail() { rm -rf "$folder"; echo "failed $node: $1|$2"; exit 1; }
trap 'rm -rf "$folder"; exit 143' HUP INT TERM
trap '' USR1 USR2
size=$(stat -Lc %s "$image" 2>/dev/null) || fail "the image is not there: $image" "Put it on a file system that all nodes see."
mkdir "$folder" 2>/dev/null || {
  folder=/dev/null/none   # not ours
  fail "no folder can be made in $place" "Set runtime.stage_to to a folder on the nodes' own disks that you may write to."
}
[ -z "$(find "$place/" -maxdepth 0 -perm -0002 ! -perm -1000)" ] ||
  fail "anyone may replace what lies in $place" "Set runtime.stage_to to a folder that others cannot write to, or with the sticky bit."
free=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
[ "$free" -gt $((size / 1024)) ] ||
  fail "$((free / 1024)) MiB are free in $place, and the image has $((size / 1048576))" \
    "Set runtime.stage_to to a folder with more space, or runtime.stage = 'none'."
if [ "$mode" = copy ]; then
  cp -- "$image" "$copy" 2>"$folder/words" &
  wait $! || fail "the image cannot be copied to $place: $(sed -n 's/.*: //;$p' "$folder/words")" \
    "Set runtime.stage_to to another folder, or runtime.stage = 'none'."
else
  echo "made $node"
  read -r word; [ "$word" = go ] || { rm -rf "$folder"; exit 0; }
fi
[ "$(stat -c %s "$copy" 2>/dev/null)" = "$size" ] ||
  fail "the copy in $place is not as large as the image" "Is it on the node's own disk? Set runtime.stage_to, or runtime.stage = 'none'."
echo "ready $node"
read -r word   # the run's end
rm -rf "$folder"
