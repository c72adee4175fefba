"""Table `levers`: what each lever does to memory and speed, on several ranks of this machine."""
