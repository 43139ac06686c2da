# Runs a line of `setup.run` on its node; comes after task_processes.sh. $1: file that marks it as
# done. $2: environment, or empty. $3: the line. $4: seconds that it may take. $5: its tag.
#
# It is over when its shell is: what it started in the background may hold its output for ever, so
# this goes to a file, which is followed. That runs on until the cluster's end, by its tag.
done=$1 environment=$2 line=$3 limit=$4 tag=CLOUDTRAIN_SETUP=$5 silence=${CLOUDTRAIN_SILENCE:-60}
if [ -n "$environment" ]; then
  case $environment in /*) ;; *) environment=$PWD/$environment ;; esac
  PATH=$environment/bin:$PATH VIRTUAL_ENV=$environment
  export PATH VIRTUAL_ENV
fi
mkdir -p "$(dirname "$done")" && log=$done.log && : >"$log" || exit

# Another account's cluster may have the same name and the same line.
moment
own=CLOUDTRAIN_SETUP_LINE=$$/$now

# its_processes: sets found to what the line has started and still runs.
its_processes() {
  found=$(members "$own" "$root" "$born" | cut -d' ' -f1)
  [ -n "$found" ]
}

# watching: says what runs after a minute without output, and ends the line after its time.
watching() {
  trap 'kill $nap; exit' TERM
  moment
  last=$((now + limit * 100)) size=0 since=$now
  while kill -0 "$root" 2>/dev/null; do
    sleep 1 >/dev/null 2>&1 &
    nap=$!
    wait $nap
    moment
    if [ $now -ge $last ]; then
      : >"$log.late"
      end "$own" 5
      return
    fi
    written=$(stat -c %s "$log")
    if [ "$written" != "$size" ]; then
      size=$written since=$now
    elif [ -n "$since" ] && [ $((now - since)) -ge $((silence * 100)) ] && its_processes; then
      since=
      echo "note: no output for $silence s, still runs: $(named $found)"
    fi
  done
}

watcher=0 watched=0
set -- /bin/sh -c "$line"
! command -v setsid >/dev/null || set -- setsid "$@"
env "$tag" "$own" "$@" </dev/null >>"$log" 2>&1 &
root=$!
read -r stat 2>/dev/null <"/proc/$root/stat" && { set -- ${stat##*) }; born=${20}; } || born=0
watching &
watching=$!
tail -c +1 -f -s 0.1 --pid="$root" "$log" 2>/dev/null || {
  # Nobody listens any more.
  end_children $watching
  end "$own" 5
  exit 1
}
wait "$root"
code=$?
[ -e "$log.late" ] || end_children $watching
wait $watching 2>/dev/null
if [ -e "$log.late" ]; then
  rm -f "$log.late"
  [ $((limit % 60)) = 0 ] && limit=$((limit / 60))m || limit=${limit}s
  echo "it was ended: it ran for longer than setup.timeout, $limit"
  echo 'hint: raise `setup.timeout`; what is to go on running belongs in the background, with `&`'
  exit 124
fi
if its_processes; then
  sleep 0.5 # what is about to end by itself
  if [ $code != 0 ]; then
    end "$own" 5
  elif its_processes; then
    echo "note: left running until the cluster's end: $(named $found)"
  fi
fi
[ $code = 0 ] || exit $code
