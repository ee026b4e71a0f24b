#!/bin/bash
#SBATCH --job-name=keras-seqconv
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=32
#SBATCH --time=48:00:00
#SBATCH --signal=TERM@120
# A signal two minutes before the end: the run writes a checkpoint, and the same
# script resumes from it.

set -euo pipefail

export KERAS_BACKEND=jax
# The one process of a node uses all its GPUs; by default JAX takes one of them.
export JAX_LOCAL_DEVICE_IDS=0,1,2,3,4,5,6,7

srun --kill-on-bad-exit=1 keras-seqconv train \
  --preset dynamic_conv_wmt_en_de --dataset wmt14_translate/de-en \
  --workdir "$HOME/runs/wmt" --precision mixed_bfloat16 \
  --updates-per-epoch 1000 --hosts
