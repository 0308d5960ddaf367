"""The `rudder` command line: a function for every command. Heavy imports are inside the functions."""
