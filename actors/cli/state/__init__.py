"""`faust -A APP state …`: a module for each command.

reading.py reads this machine's disk, keys.py converts keys and values between text and bytes.
"""
