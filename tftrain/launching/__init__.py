"""The parts of `python -m tftrain.launch`, which starts ranks on one or several hosts.

The launcher starts one agent on each host, directly or over ssh (`agent.py`). The agent starts the ranks of its host,
passes signals to them, and sends their lines and exit codes back (`messages.py`). Horovod's classes assign the ranks
to the hosts and serve the rendezvous.
"""
