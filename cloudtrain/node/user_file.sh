# Edits a text file of the user's so that no line of theirs can be lost: on any number of machines
# at once, on a shared home, at any kill. The only code that edits one; put before a script.
#   add_line FILE LINE            unless it has that line
#   add_first_line FILE LINE      the same, above all others
#   remove_lines FILE ENDING      every line that ends with a space and ENDING: [a-z0-9:-] only
# Either exits 1 with a sentence, the file untouched. Needs a POSIX sh, coreutils, grep and sed.
#
# Who edits holds the folder `.cloudtrain.lock` beside the file, and prepares the new content below
# it, in a folder of the holder's own name. Lock and content move in by one rename, the only way
# that is atomic on NFS, too. A lock whose holder was killed is recognised by its name, which stays
# the same for $patience looks: on a shared home that is another machine's process. It is moved
# away: a holder that was only slow then no longer finds its content, and begins again.
add_line() { edit_file "$1" "$2" "" last; }
add_first_line() { edit_file "$1" "$2" "" first; }
remove_lines() { edit_file "$1" "" "$2" ""; }

edit_file() (
  set +e
  LC_ALL=C shown=$1 wanted=$2 ending=$3 where=$4 patience=${CLOUDTRAIN_LOCK_PATIENCE:-100} rounds=0
  export LC_ALL
  file=$(readlink -f -- "$1") || refuse "it leads nowhere"
  if [ ! -e "$file" ]; then
    [ -n "$wanted" ] || exit 0
    words=$(umask 077; true 2>&1 >>"$file") || refuse "$words"
  fi
  folder=${file%/*} lock=${file%/*}/.cloudtrain.lock own=
  [ -f "$file" ] || refuse "it is not a file"
  trap 'let_go' EXIT
  trap 'exit 143' HUP INT TERM
  while needed; do
    rounds=$((rounds + 1))
    [ $rounds -le 100 ] || refuse "others change it all the time"
    [ -r "$file" ] && [ -w "$file" ] || refuse "it is read-only"
    [ -w "$folder" ] || refuse "its folder is read-only"
    if held; then
      words=$(change 2>&1) || [ "$words" = again ] || ! held || refuse "$words"
    else
      take # and look again
    fi
  done
)

refuse() {
  echo "$shown was not changed: $1" >&2
  exit 1
}

needed() {
  if [ -n "$wanted" ]; then grep -qxF -- "$wanted" "$file"; else grep -q -- " $ending\$" "$file"; fi
  case $? in
    0) [ -z "$wanted" ] ;;
    1) [ -n "$wanted" ] ;;
    *) refuse "it cannot be read" ;;
  esac
}

held() { [ -n "$own" ] && [ -d "$lock/${own##*/}" ]; }

take() {
  let_go
  # Of processes that were killed while they waited.
  find "$folder" -maxdepth 1 -name '.cloudtrain-????????' -mtime +0 -exec rm -rf {} + 2>/dev/null
  own=$(mktemp -d "$folder/.cloudtrain-XXXXXXXX" 2>&1) || { words=$own own=; refuse "$words"; }
  words=$(mkdir "$own/${own##*/}" 2>&1) || refuse "$words"
  holder= looks=0 waited=0
  until mv -fT "$own" "$lock" 2>/dev/null || held; do
    seen=$(ls -A "$lock" 2>/dev/null)
    [ "$seen" = "$holder" ] || looks=0
    holder=$seen looks=$((looks + 1)) waited=$((waited + 1))
    if [ -n "$seen" ] && [ $looks -gt "$patience" ]; then
      mv -fT "$lock" "$own/broken" 2>/dev/null
      rm -rf -- "$own/broken"
      looks=0
    fi
    [ $waited -le 300 ] || refuse "${folder}/.cloudtrain.lock is held by others"
    sleep 0.1
  done
}

# By a rename, too: if the lock is already another's, that one begins again.
let_go() {
  [ -n "$own" ] || return 0
  ! held || mv -fT "$lock" "$own" 2>/dev/null
  rm -rf -- "$own"
}

# change: answers `again` if another program changed the file meanwhile.
change() {
  work=$lock/${own##*/}
  rm -f -- "$work/new" "$work/old" "$work/replaced"
  cp -p -- "$file" "$work/old" && cp -p -- "$work/old" "$work/new" || return
  size=$(wc -c <"$work/old")
  if [ "$where" = first ]; then
    { printf '%s\n' "$wanted" && cat "$work/old"; } >"$work/new" || return
    least=$((size + ${#wanted} + 1))
  elif [ "$where" = last ]; then
    {
      cat "$work/old" && { [ -z "$(tail -c 1 "$work/old")" ] || echo; } && printf '%s\n' "$wanted"
    } >"$work/new" || return
    least=$((size + ${#wanted} + 1))
  else
    sed "/ $ending\$/d" "$work/old" >"$work/new" || return
    least=$((size - $(sed -n "/ $ending\$/p" "$work/old" | wc -c)))
  fi
  [ "$(wc -c <"$work/new")" -ge $least ] || { echo "its new content is incomplete"; return 1; }
  [ "$(stat -c %u:%g:%a "$work/new")" = "$(stat -c %u:%g:%a "$file")" ] ||
    { echo "its owner and permissions cannot be kept"; return 1; }
  sync "$work/new" || return
  ln -- "$file" "$work/replaced" 2>/dev/null
  same "$file" "$work/old" || { echo again; return 1; }
  mv -f -- "$work/new" "$file" || return
  # What another program appended until that moment.
  [ ! -e "$work/replaced" ] || same "$work/replaced" "$work/old" ||
    tail -c "+$((size + 1))" "$work/replaced" >>"$file"
}

same() { [ "$(cksum <"$1")" = "$(cksum <"$2")" ]; }
