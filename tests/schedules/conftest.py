"""Properties hold however busy the machine is: examples have no deadline."""

from hypothesis import settings

settings.register_profile("schedules", deadline=None, max_examples=50)
settings.load_profile("schedules")
