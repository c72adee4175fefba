"""This process and its host: log, messages, exit codes, devices, environment."""
