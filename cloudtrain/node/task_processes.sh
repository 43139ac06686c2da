# Finds, names and ends the processes of a task; put before the scripts that do.

# alive PID START BOOT: whether it is that very process, and not a zombie.
alive() {
  [ "$3" = "$boot_here" ] || return 1
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
  set -- "$2" ${stat##*) }
  [ "${21}" = "$1" ] && [ "$2" != Z ] && [ "$2" != X ]
}

# end_children PID…: TERM to those that still are children of this script. One that has ended may have left
# its number to a process that is not ours.
end_children() {
  for p do
    read -r stat 2>/dev/null <"/proc/$p/stat" || continue
    case ${stat##*) } in ?" $$ "*) kill "$p" 2>/dev/null ;; esac
  done
}

# members TAGS ROOT BORN [KEEPER KEPT]: lines `PID STATE TICKS COMMAND` of every live process that
# has one of the tags (one a line; may be empty), is ROOT, is in its session, is an orphan that
# KEEPER has got (a child of another session: its own helpers are in its own), or descends from one
# of these. BORN and KEPT are when ROOT and KEEPER started.
members() {
  bearers=
  [ -z "$1" ] || bearers=$(grep -lsxzF -e "$1" /proc/[0-9]*/environ)
  cat /proc/[0-9]*/stat 2>/dev/null |
    BEARERS=$bearers awk -v root="$2" -v born="$3" -v keeper="${4:-0}" -v kept="${5:-0}" '
    BEGIN { n = split(ENVIRON["BEARERS"], path, /[^0-9]+/); for (i = 1; i <= n; i++) tagged[path[i]] }
    {
      if (!match($0, /.*\)/)) next
      split(substr($0, RLENGTH + 2), f, " ")
      if (f[1] == "Z" || f[1] == "X") next
      pid = $1 + 0; state[pid] = f[1]; parent[pid] = f[2]; session[pid] = f[4]
      ticks[pid] = f[12] + f[13]; start[pid] = f[20]
      comm = substr($0, length($1) + 3, RLENGTH - length($1) - 3)
      gsub(/[^A-Za-z0-9_.:+-]/, "_", comm); name[pid] = comm
    }
    END {
      other = (root in start) && start[root] != born
      keeps = (keeper in start) && start[keeper] == kept
      for (p in start)
        if ((p in tagged) || (root > 0 && !other && (p == root || session[p] == root)) ||
            (keeps && parent[p] == keeper && session[p] != session[keeper])) mine[p]
      do {
        grown = 0
        for (p in start) if (!(p in mine) && (parent[p] in mine)) { mine[p]; grown = 1 }
      } while (grown)
      for (p in mine) print p, state[p], ticks[p], name[p]
    }'
}

# contained ATTEMPT PID…: those in the container of this attempt, if it has one. TERM goes to them
# alone: Podman's and Docker's own processes end with the container, and would pass it on again.
contained() {
  [ -e "$1/end-container" ] || return
  shift
  outside=$(readlink /proc/self/ns/pid)
  for p do
    space=$(readlink "/proc/$p/ns/pid") && [ "$space" != "$outside" ] && echo "$p"
  done
}

# container_gone ATTEMPT: a container may outlive the processes that look after it.
container_gone() {
  [ -x "$1/end-container" ] || return 0
  timeout 60 "$1/end-container" >/dev/null 2>&1 </dev/null
  rm -f "$1/end-container"
}

# end TAGS SECONDS [ATTEMPT]: ends all members of root, born, watcher, watched and TAGS; sets
# termed, killed, left, verdict.
end() {
  termed=0 killed=0 verdict=143
  moment
  grace_over=$((now + $2 * 100)) given_up=$((now + $2 * 100 + 1000))
  left=$(members "$1" "$root" "$born" "$watcher" "$watched" | cut -d' ' -f1)
  inside=$(contained "${3:-/}" $left)
  for p in ${inside:-$left}; do kill -TERM "$p" 2>/dev/null && termed=$((termed + 1)); done
  for p in $left; do kill -CONT "$p" 2>/dev/null; done
  while [ -n "$left" ] && moment && [ $now -lt $given_up ]; do
    if [ $now -ge $grace_over ]; then
      verdict=137
      for p in $left; do kill -KILL "$p" 2>/dev/null && killed=$((killed + 1)); done
    fi
    sleep 0.05
    left=$(members "$1" "$root" "$born" "$watcher" "$watched" | cut -d' ' -f1)
  done
}

# moment: sets now, hundredths of a second since the boot.
moment() {
  read -r now rest </proc/uptime
  now=${now%.*}${now#*.}
}

# named PID…: `2 processes: python serve.py (pid 12), sleep (pid 13)`. Of a command line only the
# program and the file or module that it runs: the rest may hold a secret.
named() {
  echo "$# process$([ $# = 1 ] || echo es): $(
    shown=0
    for p do
      [ $shown != 0 ] && printf ', '
      shown=$((shown + 1))
      [ $shown -le 5 ] || { printf 'and %s more' $(($# - 5)); break; }
      {
        read -r program
        read -r first
        read -r second
      } <<END
$(head -c 4096 "/proc/$p/cmdline" 2>/dev/null | tr '\0\n' '\n ' | tr -c '[:print:]\n' '?')
END
      program=${program##*/}
      case $first in
        -m) program="$program -m $second" ;;
        /*) [ ! -f "$first" ] || program="$program ${first##*/}" ;;
        ?*) [ ! -f "/proc/$p/cwd/$first" ] || program="$program $first" ;;
      esac
      printf '%s (pid %s)' "${program:-one that has ended}" "$p"
    done
  )"
}
