"""Trains on Ray: `python configs/train_on_ray.py HOSTS RANKS_PER_HOST FLAGS`, the flags of `tftrain.run`."""

import os
import secrets
import sys

import ray
from horovod.ray import RayExecutor

from tftrain import run

hosts, ranks = map(int, sys.argv[1:3])
ray.init()
has_gpus = "GPU" in ray.cluster_resources()
settings = RayExecutor.create_settings(timeout_s=300)
executor = RayExecutor(settings, num_hosts=hosts, num_workers_per_host=ranks, use_gpu=has_gpus)
os.environ["HOROVOD_JOB_TOKEN"] = token = secrets.token_hex(32)
executor.start(extra_env_vars={"HOROVOD_JOB_TOKEN": token})
codes = executor.run(run.main, [["tftrain.run", *sys.argv[3:]]])
executor.shutdown()
sys.exit(max(codes))
