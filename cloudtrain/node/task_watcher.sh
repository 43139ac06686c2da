# What a task's watcher (watcher.py) does rarely, with tools: sh -c THIS sh FOLDER PORT TAG GRACE
# WATCHER VERB ARGUMENT. Comes after task_processes.sh.
folder=$1 port=$2 tag=$3 grace=$4 watching=$5 argument=$7

# clock: sets past, hundredths of a second since the attempt began.
clock() {
  read -r past rest </proc/uptime
  past=$((${past%.*} * 100 + 1${past#*.} - 100 - argument))
}

# Only a process beside the task can tell whether it ever served: others check once a second, and
# never after its end. Exits if the watcher was killed.
serving() {
  before=$(conversations | cut -d' ' -f2,3)
  [ -z "$before" ] || printf '%s\n' "$before" >"$folder/before"
  turn=0 pause=0.1
  until grep -qsE ": [0-9A-F]+:$port 0+:0000 0A " /proc/net/tcp /proc/net/tcp6; do
    clock
    [ $past -lt 6000 ] || pause=0.5
    turn=$((turn + 1))
    [ $((turn % 10)) != 0 ] || [ -L "$folder/elsewhere" ] || ! elsewhere ||
      ln -sn "$past" "$folder/elsewhere"
    sleep $pause
    kill -0 "$watching" || exit
  done
  clock
  ln -sn "$past" "$folder/served"
}

# elsewhere: whether a process of the task's session listens on any port.
elsewhere() {
  root=$(readlink "$folder/task") || return
  root=${root%%:*}
  {
    awk '$4 == "0A" { print "listens", $10 }' /proc/net/tcp /proc/net/tcp6
    cat /proc/[0-9]*/stat | awk -v root="$root" 'match($0, /.*\)/) {
      split(substr($0, RLENGTH + 2), f, " ")
      if (f[4] == root) print $1 + 0
    }' | while read -r p; do ls -l "/proc/$p/fd"; done
  } | awk '$1 == "listens" { open[$2]; next }
    match($0, /socket:\[[0-9]+/) && (substr($0, RSTART + 8, RLENGTH - 8) in open) { found = 1 }
    END { exit !found }'
}

# conversations: connections of PORT on this host, also those that ended within the last minute
# (TIME_WAIT): they reveal a server that was not seen. Towards another host it is a peer's port.
conversations() {
  any='[0-9A-F]+' loopback='([0-9A-F]{6}7F|0{16}FFFF0{4}[0-9A-F]{6}7F|0{24}01000000)'
  grep -hsoE ": ($any:$port $any:$any|$any:$any $loopback:$port) 0[1345689B] " \
    /proc/net/tcp /proc/net/tcp6
}

# bound HEAD CUT: frees CUT MiB of the log after HEAD MiB, and writes there how much.
bound() {
  fallocate -p -o "$1MiB" -l "$2MiB" "$folder/log" || return
  printf '\n[cloudtrain: %s MiB of this log were deleted here, to keep the disk free]\n' "$2" |
    dd of="$folder/log" bs=1M seek="$1" conv=notrunc
}

# served: how a task with a port has ended.
served() {
  clock
  before=$(cat "$folder/before" 2>/dev/null)
  conversations | cut -d' ' -f2,3 | grep -vxFe "$before" >/dev/null || past="never $past"
  ln -sn "$past" "$folder/served" 2>/dev/null
}

# left_behind: ends what the task has left, and says so in its log. What is about to end by itself,
# such as a tee, gets three seconds for that.
left_behind() {
  IFS=: read -r root born _ watcher watched <<END
$(readlink "$folder/task")
END
  moment
  patience=$((now + ${CLOUDTRAIN_LEFT_PATIENCE:-300}))
  while found=$(members "CLOUDTRAIN_TASK=$tag" "$root" "$born" "$watcher" "$watched") &&
    [ -n "$found" ] && moment && [ $now -lt $patience ]; do
    sleep 0.2
  done
  [ -n "$found" ] || return
  found=$(named $(echo "$found" | cut -d' ' -f1))
  end "CLOUDTRAIN_TASK=$tag" "$grace" "$folder"
  task=${folder%/*}
  {
    [ -z "$(tail -c 1 "$folder/log")" ] || echo
    echo "[cloudtrain: ended ${found%%:*} that ${task##*/} left behind:${found#*:}]"
    [ -z "$left" ] || echo "[cloudtrain: not ended, as the kernel or its owner keeps it: $(named $left)]"
  } >>"$folder/log"
}

case $6 in
  bound) bound $argument ;;
  container_gone) container_gone "$folder" ;;
  *) "$6" ;;
esac
