#!/bin/sh
# The first run on a real account, as docs/first-real-run.md tells it, written into one file.
#
#   sh docs/first-real-run.sh gcp us-central1 gs://BUCKET/first cpu     two CPU nodes: cents
#   sh docs/first-real-run.sh gcp us-central1 gs://BUCKET/first gpu     one T4, then two as spot: about 1 $
#   sh docs/first-real-run.sh gcp us-central1 gs://BUCKET/first end     a node that must end by itself
#   sh docs/first-real-run.sh gcp us-central1 gs://BUCKET/first ended   says, an hour later, whether it did
#   sh docs/first-real-run.sh local - file:///tmp/first cpu             the same without an account
#
# The report is first-real-run-CLOUD-PART.txt in this folder, with all answers of the cloud in
# first-real-run-CLOUD-PART.jsonl. Account ids, mail addresses and public addresses are masked in
# both; look through them before you send them.
set -u
[ $# -eq 4 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
cloud=$1 place=$2 store=$3 part=$4
here=$(cd "$(dirname "$0")/.." && pwd)
report=$PWD/first-real-run-$cloud-$part.txt
export CLOUDTRAIN_RECORD="$PWD/first-real-run-$cloud-$part.jsonl"
work=$(mktemp -d) && cp -R "$here/examples" "$work" || exit 1
failed=0
command -v cloudtrain >/dev/null || PATH=$here/.venv/bin:$PATH
case $cloud in
  gcp) cpu=e2-standard-4 gpu=n1-standard-8 ;;
  aws) cpu=m6i.xlarge gpu=g4dn.xlarge ;;
  azure) cpu=Standard_D4s_v5 gpu=Standard_NC4as_T4_v3 ;;
  local) cpu= gpu= ;;
  *) echo "gcp, aws, azure or local, not $cloud" >&2; exit 2 ;;
esac

machine=${cpu:+, machine: $cpu}

masked() {
  sed -E -e 's/[[:alnum:]._+-]+@[[:alnum:].-]+\.[[:alpha:]]+/<mail>/g' \
    -e 's/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/<guid>/g' \
    -e 's/([^0-9]|^)[0-9]{12}([^0-9]|$)/\1<account>\2/g' \
    -e 's/([^0-9.]|^)(1[1-9]|[2-9][0-9]|1[013-9][0-9]|12[0-689]|2[0-9][0-9])(\.[0-9]{1,3}){3}/\1<address>/g' \
    ${GOOGLE_CLOUD_PROJECT:+-e "s/$GOOGLE_CLOUD_PROJECT/<project>/g"} -e "s#$HOME#~#g"
}

say() { printf '%s\n' "$*" | tee -a "$report"; }

# step EXPECTED-EXIT WORDS... : runs the command, its output into the report, with time and exit code.
step() {
  expected=$1; shift
  say ""; say "== $* =="
  begun=$(date +%s)
  "$@" >"$work/out" 2>&1 </dev/null
  code=$?
  masked <"$work/out" >>"$report"
  tail -n 3 "$work/out" | masked
  verdict=ok
  [ "$code" = "$expected" ] || { verdict="NOT AS EXPECTED ($expected)"; failed=1; }
  say "-- exit $code after $(($(date +%s) - begun)) s: $verdict"
}

# config NAME STRATEGY SCRIPT LIFETIME NODES
config() {
  {
    echo "name: $1"; echo "provider: $cloud"
    [ "$cloud" = local ] || echo "placement: [$place]"
    echo "strategy: $2"; echo "nodes:"; printf '%b' "$5"
    echo 'setup: {tensorflow: "2.21", packages: [scikit-learn]}'
    echo "code: {path: examples}"
    echo "train:"
    echo "  command: python $3 --output {output}"
    echo "  checkpoints: ckpt"
    echo '  env: {TF_CPP_MIN_LOG_LEVEL: "2"}'
    echo "artifacts: {store: $store/$1, require: [output/model/saved_model.pb]}"
    [ "$cloud" = local ] || echo "limits: {max_lifetime: $4, max_price: 5}"
  } >"$work/$1.yaml"
  say ""; masked <"$work/$1.yaml" | tee -a "$report" >/dev/null
}

# whole NAME: check, up, up again, train, fetch and down of one cluster.
whole() {
  step 0 cloudtrain check "$work/$1.yaml"
  step 0 cloudtrain plan "$work/$1.yaml"
  step 0 cloudtrain up "$work/$1.yaml" --yes
  step 0 cloudtrain status "$1"
  step 0 cloudtrain up "$work/$1.yaml" --yes
  step 0 cloudtrain train "$1"
  step 0 cloudtrain fetch "$1" "$work/$1-home"
  step 0 cloudtrain down "$1" --yes
  step 0 cloudtrain ls --cloud
}

: >"$report"
rm -f "$CLOUDTRAIN_RECORD"
say "first real run: $cloud, $part, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
step 0 cloudtrain --version
step 0 uname -srm
case $part in
  cpu)
    config first-cpu multi_worker_mirrored multi_worker_mirrored.py 1h \
      "  chief: {count: 1$machine}\n  worker: {count: 1$machine}\n"
    [ "$cloud" = local ] || step 0 cloudtrain check "$work/first-cpu.yaml" --deep
    whole first-cpu ;;
  gpu)
    config first-gpu mirrored mirrored.py 1h "  chief: {machine: $gpu, accelerator: 'T4:1'}\n"
    whole first-gpu
    config first-spot multi_worker_mirrored multi_worker_mirrored.py 1h \
      "  chief: {machine: $gpu, accelerator: 'T4:1'}\n  worker: {machine: $gpu, accelerator: 'T4:1', spot: true}\n"
    whole first-spot ;;
  end)
    config first-end one_device mirrored.py 45m "  chief: {count: 1$machine}\n"
    step 0 cloudtrain up "$work/first-end.yaml" --yes
    step 0 cloudtrain status first-end
    say "It must end by itself in 45 minutes: come back in an hour, with \`ended\`." ;;
  ended)
    step 1 cloudtrain status first-end   # its node is missing
    step 0 cloudtrain down first-end --yes --discard
    step 0 cloudtrain ls --cloud ;;
  *) echo "cpu, gpu, end or ended, not $part" >&2; exit 2 ;;
esac
for home in "${CLOUDTRAIN_HOME:-}" "${XDG_STATE_HOME:-$HOME/.local/state}/cloudtrain"; do
  for events in "$home"/clusters/first-*/events.jsonl; do
    [ -f "$events" ] || continue
    say ""; say "== $(basename "$(dirname "$events")")/events.jsonl =="
    masked <"$events" >>"$report"
  done
done
rm -rf "$work"
say ""
[ $failed = 0 ] && say "all as expected" || say "NOT all as expected"
echo "report: $report"
[ -s "$CLOUDTRAIN_RECORD" ] && echo "answers of the cloud: $CLOUDTRAIN_RECORD"
exit $failed
