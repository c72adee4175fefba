"""Pipeline schedules as data: tables of actions, their check, their time and memory, and pictures. No TensorFlow."""
