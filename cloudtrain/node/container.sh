# Runs programs of a task in containers of an image: sh -c THIS sh VERB PLACE ARGUMENTS (see
# playbooks/containers.py). Needs a POSIX sh and Docker, or Podman from 4.1 on.
#
# PLACE is the folder of images on this node, apart from those of its owner's own Podman. Docker has
# one store. `PLACE/engine` names what `choose` has found: `docker`, or `podman` and its runtime.
verb=$1 place=$2
shift 2
case $place in /*) ;; *) place=$HOME/$place ;; esac
mkdir -p "$place" && place=$(cd "$place" && pwd -P) || exit

# podman_here ARGUMENTS…: its run folder must be empty after a boot and outlive logins, whose end
# deletes /run/user/UID (pam_systemd(8)); podman's own tmpfiles.d keeps /tmp/podman-run-*.
podman_here() {
  private
  XDG_RUNTIME_DIR=$private podman --root "$place/store" --runroot "$runs" "$@"
}

private() {
  [ -z "${private-}" ] || return 0
  private=/tmp/podman-run-cloudtrain-$(id -u)
  [ -d "$private" ] || mkdir -m 700 "$private" 2>/dev/null || [ -d "$private" ] || exit
  if [ -L "$private" ] || [ ! -O "$private" ]; then
    echo "$private is another user's" >&2
    exit 125
  fi
  runs=$private/$(printf %s "$place" | cksum | cut -d ' ' -f 1)
}

engine_here() {
  if [ "${engine%% *}" = docker ]; then docker "$@"; else podman_here "$@"; fi
}

known() {
  engine=
  { read -r engine <"$place/engine"; } 2>/dev/null
  [ -n "$engine" ] && command -v "${engine%% *}" >/dev/null 2>&1
}

# choose: finds what works for this user, and writes its name; else says what is missing.
choose() {
  gpus=
  [ ! -e /dev/nvidiactl ] || gpus=1
  said= way=
  try_podman || try_docker || {
    [ -n "$said" ] || said="it has neither Podman nor Docker"
    echo "no containers can be run: $said" >&2
    echo "hint: ${way:-install Podman (4.1 or newer): sudo apt-get install podman}" >&2
    exit 1
  }
  echo "$engine" >"$place/engine.new" && mv "$place/engine.new" "$place/engine" || exit
  echo "containers by $engine"
}

try_podman() {
  command -v podman >/dev/null 2>&1 || return
  format='{{.Version.Version}} {{.Host.OCIRuntime.Name}} {{.Store.GraphDriverName}}'
  if ! facts=$(podman_here info --format "$format" 2>"$place/words"); then
    said="podman: $(tail -n 1 "$place/words" | cut -c 1-300)"
    return 1
  fi
  facts=$(echo "$facts" | tail -n 1)
  version=${facts%% *} driver=${facts##* } runtime=${facts#* }
  runtime=${runtime%% *}
  case $version in
    [0-3].* | 4.0.*)
      said="Podman is $version" way="cloudtrain needs Podman 4.1 or newer, or Docker"
      return 1
      ;;
  esac
  if [ -n "$gpus" ] && ! grep -qs nvidia.com/gpu /etc/cdi/* /var/run/cdi/*; then
    said="Podman has no description of this node's GPUs"
    way="install NVIDIA's Container Toolkit, then: sudo nvidia-ctk cdi generate \
--output=/etc/cdi/nvidia.yaml"
    return 1
  fi
  [ "$driver" != vfs ] || echo "note: Podman stores images here by vfs, which copies the whole" \
    "image for each task: install fuse-overlayfs, or a newer kernel"
  engine="podman $runtime"
}

try_docker() {
  command -v docker >/dev/null 2>&1 || return
  if ! facts=$(docker version --format '{{.Server.Version}}' 2>"$place/words"); then
    said="${said:+$said; }docker: $(tail -n 1 "$place/words" | cut -c 1-300)"
    way="${way:-let this user use Docker: sudo usermod -aG docker $(id -un)}"
    return 1
  fi
  if [ -n "$gpus" ] && ! command -v nvidia-container-runtime-hook >/dev/null 2>&1; then
    said="${said:+$said; }Docker lacks NVIDIA's Container Toolkit"
    way="install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure \
--runtime=docker, and restart Docker"
    return 1
  fi
  engine=docker
}

# there IMAGE: whether nothing of it needs to be pulled.
there() {
  known && engine_here image inspect "$1" >/dev/null 2>&1
}

# pull IMAGE PLAIN: stdin has credentials as Docker's config.json, or nothing. They lie in memory,
# and only until the end of this. PLAIN: `plain` for a registry without TLS.
pull() {
  image=$1 plain=$2
  known || { echo "no container engine was chosen" >&2; exit 1; }
  started $$
  secrets=$(umask 077; mktemp -d "/dev/shm/cloudtrain-pull-$$-$start-XXXXXXXX") || exit
  trap 'rm -rf "$secrets"' EXIT
  trap 'exit 143' HUP INT TERM
  (umask 077; cat >"$secrets/config.json")
  if [ "${engine%% *}" = docker ]; then
    set -- docker
    [ ! -s "$secrets/config.json" ] || set -- docker --config "$secrets"
    "$@" pull --quiet "$image"
  else
    set --
    [ ! -s "$secrets/config.json" ] || set -- --authfile "$secrets/config.json"
    [ "$plain" != plain ] || set -- "$@" --tls-verify=false
    podman_here pull "$@" "$image"
  fi
}

# forgotten: removes what a pull that was killed has left: containers see this memory, too.
forgotten() {
  for left in /dev/shm/cloudtrain-pull-*; do
    [ -O "$left" ] || continue
    puller=${left#/dev/shm/cloudtrain-pull-}
    started "${puller%%-*}"
    case $puller in *-"${start:-none}"-*) ;; *) rm -rf "$left" ;; esac
  done
}

# started PID: sets start, by which a process is told from a later one with its number.
started() {
  start=
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
  set -- ${stat##*) }
  start=${20}
}

# contain HOME ARGUMENTS…: runs a container, with these arguments last; $home, $mounts (`HERE:THERE`, one
# a line) are its folders. Nothing of the image gets more rights than a task has.
contain() {
  forgotten
  home=$1
  shift
  set -- --user "$(id -u):$(id -g)" --env "HOME=$home" --env "USER=$(id -un)" \
    --env "LOGNAME=$(id -un)" "$@"
  set -- --rm -i --pull=never --no-healthcheck --network=host --ipc=host --cap-drop=ALL \
    --security-opt no-new-privileges --security-opt label=disable "$@"
  old=$IFS
  IFS='
'
  set -f
  for both in $mounts; do
    set -- -v "$both" "$@"
  done
  set +f
  IFS=$old
  case $engine in
    docker)
      set -- --log-driver=none "$@"
      [ ! -e /dev/nvidiactl ] || set -- --gpus all "$@"
      ;;
    *)
      # The container writes into the task's log itself, and goes on without its client. In the
      # task's own cgroup it outlives the login, and counts for its memory; runc cannot do that.
      set -- --log-driver=passthrough "$@"
      [ "$engine" = 'podman runc' ] || set -- --cgroups=disabled "$@"
      [ "$(id -u)" = 0 ] || set -- --userns=keep-id "$@"
      [ ! -e /dev/nvidiactl ] || set -- --device nvidia.com/gpu=all "$@"
      ;;
  esac
  engine_here run "$@"
}

# removal NAME: prints a script that ends the container, for whoever ends its task.
removal() {
  echo '#!/bin/sh'
  case $engine in
    docker) echo "exec docker rm -f '$1'" ;;
    *)
      private
      printf "XDG_RUNTIME_DIR='%s' exec podman --root '%s' --runroot '%s' rm -f '%s'\n" "$private" \
        "$(printf %s "$place/store" | sed "s/'/'\\\\''/g")" "$runs" "$1"
      ;;
  esac
}

# layered LAYER ACCESS: sets layer to the folder of packages over the image, if there is one, and
# adds it to mounts.
layered() {
  layer=
  [ -n "$1" ] || return 0
  layer=$place/layers/$1
  mounts="$mounts
$layer:$layer:$2"
}

# install IMAGE LAYER PACKAGE…: with the image's own pip, which leaves what the image has as it is.
install() {
  image=$1 name=$2
  shift 2
  known || exit 125
  rm -rf "$place/layers/$name" && mkdir -p "$place/layers/$name" || exit
  mounts=
  layered "$name" rw
  [ ! -f "${PIP_CONFIG_FILE-}" ] || mounts="$mounts
$PIP_CONFIG_FILE:$PIP_CONFIG_FILE:ro"
  # pip's settings go in by stdin, too: a URL may have a password.
  {
    export -p | sed -n 's/^declare -x /export /; /^export PIP_[A-Z_]*=/p'
    cat <<'END'
{
  python3 -m pip --version >/dev/null || { echo "the image has no pip" >&2; exit 1; }
  python3 -m venv --without-pip --system-site-packages "$1" || exit
  python=$1/bin/python
  shift
  "$python" -m pip install --no-cache-dir --disable-pip-version-check --no-input -- "$@" </dev/null
  exit
}
END
  } | contain / --workdir / --entrypoint /bin/sh "$image" -s "$layer" "$@" || {
    echo "hint: build an image that has the packages, or change setup.packages" >&2
    exit 1
  }
  : >"$layer/.complete"
}

installed() {
  [ -e "$place/layers/$1/.complete" ]
}

# run IMAGE LAYER NAME ATTEMPT TASK HOME FOLDER…: what $CLOUDTRAIN_INSIDE has, a script, in the current
# folder; ends with its exit code. It goes in by stdin: variables of a container's own are written
# to disks. HOME: a folder in the node's, or `own` for one of the task's.
run() {
  image=$1 over=$2 name=$3 attempt=$HOME/$4 task=$HOME/$5 whose=$6
  shift 6
  known || { echo "cloudtrain: no container engine was chosen on this node" >&2; exit 125; }
  inside=$CLOUDTRAIN_INSIDE
  unset CLOUDTRAIN_INSIDE
  mounted "$task" "$whose" "$@"
  layered "$over" ro
  removal "$name" >"$attempt/end-container" && chmod 700 "$attempt/end-container" || exit 125
  printf '%s\n' "$inside" | contain "$its_home" --name "$name" --workdir "$(pwd -P)" \
    --entrypoint /bin/sh --env CLOUDTRAIN_TASK --env NCCL_SOCKET_IFNAME \
    --env "CLOUDTRAIN_LAYER=$layer" "$image" -s
}

# mounted TASK HOME FOLDER…: sets mounts and its_home. Never the node's home itself: what lies there
# is run outside of containers.
mounted() {
  task=$(cd "$1" && pwd -P) || exit
  if [ "$2" = own ]; then
    its_home=$task/home
  else
    its_home=$(cd && pwd -P)/$2
  fi
  mkdir -p "$its_home" || exit
  mounts="$task/code:$task/code
$its_home:$its_home"
  shift 2
  for folder do
    real=$(cd "$folder" && pwd -P) || exit
    mounts="$mounts
$real:$real"
    [ "$real" = "$folder" ] || mounts="$mounts
$real:$folder"
  done
}

# python IMAGE LAYER ARGUMENTS…: its Python, with no file of this node, and the variables by which
# TensorFlow computes. It ends with its stdin.
python() {
  image=$1 over=$2
  shift 2
  known || exit 125
  mounts=
  layered "$over" ro
  names=$(env | sed -n 's/^\(\(TF\|GRPC\|XLA\|NCCL\|CUDA\|KERAS\)_[A-Za-z0-9_]*\)=.*/\1/p')
  program=python3
  [ -z "$layer" ] || program=$layer/bin/python
  set -- --entrypoint "$program" "$image" "$@"
  for name in CLOUDTRAIN_TASK $names; do set -- --env "$name" "$@"; done
  contain / --workdir / "$@"
}

# unasked IMAGE: exits if annotations of the image tell its runtime what to do outside of the
# container, as the node's user: Podman hands on each, and crun appends to the file that
# run.oci.hooks.stdout names (github.com/containers/crun, crun.1.md).
unasked() {
  [ "${engine%% *}" = podman ] || return 0
  format='{{range $name, $_ := .Annotations}}{{println $name}}{{end}}'
  names=$(podman_here image inspect --format "$format" "$1") || exit
  told='run\.oci|org\.(systemd|criu)|module\.wasm|io\.(podman|containers?|kubernetes)'
  names=$(echo "$names" | grep -E "^($told)\.") || return 0
  echo "the image tells its runtime what to do, by annotations:" $names | cut -c 1-300 >&2
  echo "hint: build it without them, or set another setup.image" >&2
  exit 1
}

# probe IMAGE: whether tasks can run in it; once, as the image is one of a digest.
probe() {
  known || exit 125
  proven=$place/$(printf %s "$1" | cksum | cut -d ' ' -f 1).proven
  unasked "$1"
  mounts=
  said=$(contain / --workdir / --entrypoint /bin/sh "$1" -s 2>&1 <<'END'
command -v python3 >/dev/null || { echo no-python; exit 1; }
python3 -c 'import sys; print("python %d.%d" % sys.version_info[:2])'
END
  ) && { echo "$said" | tail -n 1; echo "$1" >"$proven"; exit; }
  case $said in
    *no-python) echo "the image has no python3 in its PATH" >&2 ;;
    *'/bin/sh'*) echo "the image has no /bin/sh, which runs the task's line: $said" >&2 ;;
    *'xec format error'*) echo "the image is for another architecture than $(uname -m)" >&2 ;;
    *) echo "a container of the image does not start: $(echo "$said" | tail -n 1)" >&2 ;;
  esac
  echo "hint: set another setup.image" >&2
  exit 1
}

probed() {
  [ "$(cat "$place/$(printf %s "$1" | cksum | cut -d ' ' -f 1).proven" 2>/dev/null)" = "$1" ]
}

"$verb" "$@"
