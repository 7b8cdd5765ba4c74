#!/usr/bin/env bash
# Audit one changelog. Standard output: a JSON object. Exit code: 0 equal, 1 differs, 2 no answer.
if [ $# -ne 4 ]; then
    echo "usage: $0 BROKERS CHANGELOG EXPORTS FOLDER" >&2
    exit 2
fi
brokers=$1 changelog=$2 exports=$3 folder=$4
log=(--brokers "$brokers" --archive "$folder/archive" --changelog "$changelog")

# run a step that has to be done; a failure ends the audit
step() {
    local result
    result=$(python -m spark_replay "$@" --json) || { echo "$result"; exit 2; }
}

step archive --brokers "$brokers" --topic "$changelog" --to "$folder/archive" --once

# compare with the rebuild of the hour before, and the log behind it; the first time with the whole log
since=() base=()
if [ -d "$folder/rebuilt" ]; then
    since=(--incremental "$folder/rebuilt") base=(--from "$folder/rebuilt" --overwrite)
fi
result=$(python -m spark_replay validate "${log[@]}" --against "$exports" "${since[@]}" --json)
code=$?

# rebuild for the next hour, but keep the earlier rebuild while something differs
if [ $code -eq 0 ]; then
    step rebuild "${log[@]}" "${base[@]}" --to "$folder/rebuilt"
fi
echo "$result"
# code 1 without a result is a program that didn't start
if [ $code -gt 1 ] || [ -z "$result" ]; then
    exit 2
fi
exit $code
