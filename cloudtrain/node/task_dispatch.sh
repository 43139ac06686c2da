# Lists and ends tasks on their node: sh -c THIS sh VERB ARGUMENTS (see task_commands.py).
# Needs a POSIX sh, coreutils, grep and awk; comes after task_processes.sh. Its records are described
# in watcher.py.
umask 077
default_ifs=$IFS
boot_here=
read -r boot_here </proc/sys/kernel/random/boot_id
boot_here=${boot_here%%-*}

# look FOLDER: sets state, code, pid (0: gone), keeper (whose end ends the attempt), and
# root, born, watcher and watched: members go by them.
look() {
  state=absent code=- pid=0 keeper=0 root=0 born=0 watcher=0 watched=0
  record=$(readlink "$1/task") || return 0
  if [ "$record" != stopped ]; then
    IFS=:
    set -- "$1" $record
    IFS=$default_ifs
    [ "$4" != "$boot_here" ] || root=$2 born=$3 watcher=$5 watched=$6
    ! alive "$2" "$3" "$4" || pid=$2 keeper=$2
    ! alive "$5" "$6" "$4" || keeper=$5
  fi
  # Read after the liveness check: a watcher that is gone has written it before.
  if code=$(readlink "$1/exit"); then
    state=exited
  elif [ "$keeper" != 0 ]; then
    state=running code=-
  else
    state=lost code=-
  fi
}

# status FOLDER…: for each, a line `STATE CODE PID SIZE STARTED ENDED FOLDER`, then its processes.
status() {
  for folder do
    look "$folder"
    size=$(stat -c %s "$folder/log" 2>/dev/null) || size=0
    started=$(stat -c %Y "$folder/task" 2>/dev/null) || started=0
    ended=$(stat -c %Y "$folder/exit" 2>/dev/null) || ended=0
    echo "$state $code $pid $size $started $ended $folder"
    [ "$state" != running ] || members "" "$root" "$born" "$watcher" "$watched" | sed 's/^/- /'
  done
}

# stop FOLDER TAG SECONDS: TERM, then KILL to whatever is left: `stopped TERMED KILLED LEFT…`.
stop() {
  mkdir -p "$1"
  ! ln -sn stopped "$1/task" 2>/dev/null || ln -sn 143 "$1/exit" # a late start is refused
  look "$1"
  before=$state
  end "CLOUDTRAIN_TASK=$2" "$3" "$1"
  container_gone "$1"
  # Its watcher records the exit; if that was killed too, nobody does.
  moment
  deadline=$((now + 500))
  while look "$1"; [ "$state" = running ] && [ -z "$left" ] && [ $now -lt $deadline ]; do
    sleep 0.05
    moment
  done
  [ "$before/$state" != running/lost ] || ln -sn "$verdict" "$1/exit"
  echo "stopped $termed $killed" $left
}

# orphans CLUSTER RUNS SECONDS KEPT…: ends what is left of every attempt on this node except KEPT.
# By this node's own folders: a cluster of the same name elsewhere on this host is not ours.
orphans() {
  cluster=$1 runs=$2 grace=$3 tags=
  shift 3
  for folder in "$runs"/*/*/attempt-*; do
    [ -d "$folder" ] || continue
    tag=${folder#"$runs"/}
    tag=$cluster/${tag%/attempt-*}/${tag##*/attempt-}
    case " $* " in *" $tag "*) continue ;; esac
    look "$folder"
    [ "$state" != running ] || echo "$tag $(stop "$folder" "$tag" "$grace")"
    tags="$tags${tags:+
}CLOUDTRAIN_TASK=$tag"
  done
  root=0 watcher=0
  end "$tags" "$grace"
  [ $termed = 0 ] || echo "- stopped $termed $killed" $left
}

# stacks FOLDER TAG: what each process of the task is doing, for a person to read.
stacks() {
  look "$1"
  members "CLOUDTRAIN_TASK=$2" "$root" "$born" "$watcher" "$watched" | while read -r p letter ticks name; do
    echo "== $p $name, state $letter, $ticks ticks, waits in $(cat "/proc/$p/wchan" 2>/dev/null)"
    if own_stack "$p" "$letter" "$1/stacks"; then
      :
    elif command -v py-spy >/dev/null; then
      timeout 20 py-spy dump --pid "$p" 2>&1 </dev/null
    else
      cat "/proc/$p/stack" 2>/dev/null
      for thread in "/proc/$p/task"/*; do
        echo "$(cat "$thread/comm") $(cat "$thread/wchan")"
      done 2>/dev/null | sort | uniq -c | sort -rn | head -20
    fi
  done
}

# own_stack PID STATE FILE: what a Python writes on signal 47 into FILE, which it holds open for that
# (layer.py), with the lines of the delivered code; false for any other process, which gets none.
own_stack() {
  case $2 in T | t) return 1 ;; esac
  caught=$(sed -n 's/^SigCgt:[^0-9a-f]*....\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
  case $caught in [4-7c-f]) ;; *) return 1 ;; esac # bit 46
  ls -l "/proc/$1/fd" 2>/dev/null | grep -qF -- "$3" || return 1
  old=$(stat -c %s "$3" 2>/dev/null) && kill -47 "$1" 2>/dev/null || return 1
  last=$old turn=0
  while [ $((turn = turn + 1)) -le 30 ]; do
    sleep 0.1
    size=$(stat -c %s "$3")
    [ "$size" = "$last" ] && [ "$size" -gt "$old" ] && break
    last=$size
  done
  [ "$size" -gt "$old" ] || return 1
  tail -c "+$((old + 1))" "$3"
  tail -c "+$((old + 1))" "$3" |
    sed -n 's#^  File "\(.*/code/[^"]*\)", line \([0-9]*\) in .*#\2 \1#p' | sort -u |
    while read -r number file; do
      echo "source $number $file: $(sed -n "${number}p" "$file" 2>/dev/null)"
    done
}

# changed WORK MINUTES: `changed FILE` for a file of the task that changed within these minutes.
changed() {
  timeout 20 find "$1/" "${1%/*}/shared/" -type f -mmin "-$2" -print 2>/dev/null | head -n 1 | sed 's/^/changed /'
}

"$@"
