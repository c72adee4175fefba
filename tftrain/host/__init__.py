"""This process and its host: log, files, exit codes, devices, environment."""
