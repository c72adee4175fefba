"""The parts of `python -m tftrain.launch`, which starts an agent on each host, directly or over ssh, that starts ranks.

The agent (`agent.py`) passes signals to its ranks, and sends their lines and exit codes back (`messages.py`). Horovod's
classes assign the ranks to the hosts and serve the rendezvous.
"""
