def add_commands(c): pass
