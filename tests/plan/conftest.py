"""Properties hold however busy the machine is: examples have no deadline."""

from hypothesis import settings

settings.register_profile("plan", deadline=None)
settings.load_profile("plan")
