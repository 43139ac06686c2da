# One attempt of one task: runs it in a session of its own and records how it ended.
# sh -c THIS sh FOLDER WORK; stdin: the task's environment and its exec line (see supervise.py).
#
# Records are symlinks: made whole or not at all, by the first who asks, also on a full disk.
#   FOLDER/task -> PID:START:BOOT:WATCHER:WATCHER_START   (the lock: no task runs without it)
#   FOLDER/exit -> what `wait` of this shell said
folder=$1 work=$2
read -r boot </proc/sys/kernel/random/boot_id
boot=${boot%%-*}
read -r stat </proc/self/stat
set -- ${stat##*) }
watcher=$$:${20}

(
  payload=$(cat)
  exec 3>&1 </dev/null
  # A client that died while it sent must not have half its environment run.
  case $payload in *"
#end") ;; *) echo "failed the environment did not arrive whole" >&3; exit ;; esac
  cd -- "$work" || { echo "failed there is no folder $work" >&3; exit; }
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
  # In a subshell: a starter that is gone (SIGPIPE) must not end the task.
  (echo "started $1" >&3)
  exec 3>&-
  set -- "$(command -v bash || command -v sh)"
  command -v setsid >/dev/null && set -- "$(command -v setsid)" "$@"
  eval "$payload"
)
code=$?

case $(readlink "$folder/task") in *":$boot:$watcher") ;; *) exit ;; esac
until ln -sn "$code" "$folder/exit" || [ -L "$folder/exit" ] || ! [ -d "$folder" ]; do
  sleep 1
done
