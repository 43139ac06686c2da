# Runs one attempt of one task in a session of its own and records how it ended.
# sh -c THIS sh FOLDER WORK PORT SAMPLER TAG GRACE; stdin: the task's environment and its exec line
# (see task_commands.py). PORT is the one, in hex, that TensorFlow opens in this task, or empty;
# SAMPLER the text of sampler.py, which writes FOLDER/metrics; TAG marks the task's processes, of
# which none outlives the attempt: TERM, after GRACE seconds KILL. Comes after task_processes.sh.
#
# Records are symlinks: created atomically, by the first to try, also on a full disk.
#   FOLDER/task -> PID:START:BOOT:WATCHER:WATCHER_START   (the lock: no task runs without it)
#   FOLDER/exit -> exit code, as this shell reports it
#   FOLDER/served -> TIME after the start when PORT was seen open, or `never TIME` after its end;
#   FOLDER/oom -> LIMIT:PEAK:RSS in bytes, each may be empty: the kernel killed it, out of memory
#   FOLDER/elsewhere -> TIME when it listened on another port, all in hundredths of a second
folder=$1 work=$2 port=$3 sampler=$4 tag=$5 grace=$6
read -r boot </proc/sys/kernel/random/boot_id
boot=${boot%%-*}
read -r stat </proc/self/stat
set -- ${stat##*) }
watcher=$$:${20}

# clock: sets past, hundredths of a second since this shell began.
clock() {
  read -r past rest </proc/uptime
  past=$((${past%.*} * 100 + 1${past#*.} - 100 - ${begun:-0}))
}

# Only a process beside the task can tell whether it ever served: others check once a second, and
# never after its end. Exits if this shell was killed.
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
    kill -0 $$ || exit
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

# memory: sets kills, limit, peak of the memory cgroup of this shell and the task, or of the
# machine if that is unknown.
# https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files (memory.events counts
# processes that any kind of OOM killer ended); cgroup-v1/memory.html#oom-control
memory() {
  kills= limit= peak= v1= v2=
  while IFS=: read -r _ names path; do
    case ,$names, in
      *,memory,*) v1=/sys/fs/cgroup/memory$path ;;
      ,,) v2=/sys/fs/cgroup$path ;;
    esac
  done </proc/self/cgroup
  # In a container the path may exist only on its host.
  [ -z "$v1" ] || [ -d "$v1" ] || v1=/sys/fs/cgroup/memory
  [ -d "$v2" ] || v2=/sys/fs/cgroup
  if [ -n "$v1" ]; then
    count "$v1/memory.oom_control"
    read -r limit 2>/dev/null <"$v1/memory.limit_in_bytes"
    read -r peak 2>/dev/null <"$v1/memory.max_usage_in_bytes"
  else
    count "$v2/memory.events"
    read -r limit 2>/dev/null <"$v2/memory.max"
    read -r peak 2>/dev/null <"$v2/memory.peak"
  fi
  case $limit in max | '' | ???????????????????*) limit=; whole ;; esac
}

# count FILE: sets kills.
count() {
  [ ! -r "$1" ] || while read -r name number; do
    [ "$name" != oom_kill ] || kills=$number
  done <"$1"
}

# whole: sets limit to the machine's memory.
whole() {
  while read -r name number _; do
    [ "$name" != MemTotal: ] || { limit=$((number * 1024)); return; }
  done </proc/meminfo
}

# starved: whether the kernel killed the task because memory ran out; sets rss.
starved() {
  before=$kills rss=
  memory
  root=$(readlink "$folder/task")
  # `Out of memory: Killed process 17640 (python3) total-vm:…kB, anon-rss:…kB, …`
  said=$(dmesg 2>/dev/null | grep -E "Killed process ${root%%:*} \(" | sed -n '$p')
  rss=${said##*anon-rss:} rss=${rss%%kB*}
  case $rss in *[!0-9]* | '') rss= ;; *) rss=$((rss * 1024)) ;; esac
  [ -z "$said" ] || return 0
  [ -n "$kills" ] && [ -n "$before" ] && [ "$kills" -gt "$before" ]
}

# bounding: once the log takes more than $log_most MiB of the disk, frees what lies between its
# first sixteenth of that and its last half, and writes there how much. Offsets stay as they are.
bounding() {
  ending=
  trap 'kill $nap; exit' TERM
  while :; do
    sleep "$log_every" &
    nap=$!
    wait $nap
    kill -0 $$ 2>/dev/null || exit
    set -- $(stat -c '%s %b %B' "$folder/log" 2>/dev/null)
    [ $# = 3 ] && [ $(($2 * $3)) -gt $((log_most << 20)) ] || continue
    head=$((log_most / 16)) cut=$((($1 >> 20) - log_most / 16 - log_most / 2))
    trap 'ending=1' TERM  # what is deleted is always said
    fallocate -p -o "${head}MiB" -l "${cut}MiB" "$folder/log" || exit
    printf '\n[cloudtrain: %s MiB of this log were deleted here, to keep the disk free]\n' "$cut" |
      dd of="$folder/log" bs=1M seek="$head" conv=notrunc
    trap 'kill $nap; exit' TERM
    [ -z "$ending" ] || exit
  done
}

# sampling: becomes the sampler, which ends with this shell; nothing without a python3. A task of a
# second needs none.
sampling() {
  trap 'kill $nap; exit' TERM
  sleep 1 &
  nap=$!
  wait $nap
  kill -0 $$ 2>/dev/null || exit
  trap - TERM
  python=$(command -v python3) || exit
  case $python in */shims/*) [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3 ;; esac
  exec "$python" -I -S -c "$sampler" "$folder" $$
}

# left_behind: ends what the task has left, and says so in its log. What is about to end by itself,
# such as a tee, gets three seconds for that.
left_behind() {
  IFS=: read -r root born _ watcher watched <<END
$record
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

[ -r /proc/net/tcp ] || port=
log_most=${CLOUDTRAIN_LOG_MIB:-1024} log_every=${CLOUDTRAIN_LOG_EVERY:-5}
bounding </dev/null >/dev/null 2>&1 &
bounder=$!
sampling </dev/null >/dev/null 2>&1 &
sampling=$!
memory
if [ -n "$port" ]; then
  clock
  begun=$past
  serving </dev/null >/dev/null 2>&1 & # its slow start does not delay the task
  looker=$!
fi

(
  payload=$(cat)
  exec 3>&1 </dev/null
  # If the client died while sending, half an environment must not be run.
  case $payload in *"
#end") ;; *) echo "failed the environment arrived incomplete" >&3; exit ;; esac
  cd -- "$work" || { echo "failed no folder $work" >&3; exit; }
  true >>"$folder/log" || { echo "failed $folder/log cannot be written" >&3; exit; }
  exec >>"$folder/log" 2>&1
  read -r stat </proc/self/stat
  set -- "${stat%% *}" ${stat##*) }
  if ! ln -sn "$1:${21}:$boot:$watcher" "$folder/task" 2>/dev/null; then
    case $(readlink "$folder/task") in
      stopped) echo stopped >&3 ;;
      *:*) echo already >&3 ;;
      *) echo "failed $folder cannot be written" >&3 ;;
    esac
    exit
  fi
  # In a subshell: if the starter is gone, SIGPIPE must not end the task.
  (echo "started $1" >&3)
  exec 3>&-
  set -- "$(command -v bash || command -v sh)"
  command -v setsid >/dev/null && set -- "$(command -v setsid)" "$@"
  export CLOUDTRAIN_STACKS="$folder/stacks" # where a Python of a layer writes its stacks
  eval "$payload"
)
code=$?

let_go $bounder $sampling ${looker-}
record=$(readlink "$folder/task")
case $record in *":$boot:$watcher") ;; *) exit ;; esac
if [ -n "$port" ]; then
  clock
  before=$(cat "$folder/before" 2>/dev/null)
  conversations | cut -d' ' -f2,3 | grep -vxFe "$before" >/dev/null || past="never $past"
  ln -sn "$past" "$folder/served" 2>/dev/null
fi
if [ $code = 137 ] && starved; then ln -sn "$limit:$peak:$rss" "$folder/oom" 2>/dev/null; fi
left_behind </dev/null >/dev/null 2>&1
[ $code = 0 ] || container_gone "$folder"
until ln -sn "$code" "$folder/exit" || [ -L "$folder/exit" ] || ! [ -d "$folder" ]; do
  sleep 1
done
