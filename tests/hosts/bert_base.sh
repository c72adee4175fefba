#!/bin/sh
# Inside with_hosts.sh: tests/hosts/bert_base.sh RATE FLAGS... trains BERT base for five steps on node1 and node2, whose links
# send RATE each way, such as 1gbit.
set -eu
for host in login node1 node2; do tc qdisc add dev "to_$host" root tbf rate "$1" burst 512kb latency 400ms; done
shift
on login env PYTHONPATH="$PWD" .venv/bin/python -m tftrain.launch -H node1:1,node2:1 -np 2 --synthetic_data \
    --flagfile=configs/base.flags --vocab_size=30522 --max_seq_length=128 --micro_batch_size=8 --max_steps=5 \
    --optimizer=adamw --cpu_threads=1 --log_every=1 --eval_every=-1 --checkpoint_every=0 --output_dir=build/segments "$@"
