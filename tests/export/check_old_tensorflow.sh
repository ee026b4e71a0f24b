#!/bin/sh
# Loads and runs an export with older releases of TensorFlow, each in an environment of
# its own (about 2 GB each, made once below ENVIRONMENTS):
#     tests/export/check_old_tensorflow.sh VERSION_FOLDER CASES.json [ENVIRONMENTS]
# CASES.json: see load_and_run.py; `make_cases.py MODEL_DIRECTORY VERSION_FOLDER` writes
# one. Needs Python 3.11 as python3.11.
set -eu
folder=$1 cases=$2 environments=${3:-/tmp/old_tensorflow}
script=$(dirname "$0")/load_and_run.py
for release in 2.12.1 2.18.1 2.20.0; do
  bin=$environments/$release/bin
  if [ ! -e "$environments/$release/complete" ]; then
    python3.11 -m venv "$environments/$release"
    env -u PYTHONPATH "$bin/pip" install --quiet \
      "tensorflow==$release" "tensorflow-text==$release"
    touch "$environments/$release/complete"
  fi
  # The remapper of 2.12 fuses wrongly with oneDNN, see saved_models/README.md.
  case $release in 2.12.*) onednn=0 ;; *) onednn=1 ;; esac
  env -u PYTHONPATH TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=$onednn \
    "$bin/python" "$script" "$folder" "$cases"
done
