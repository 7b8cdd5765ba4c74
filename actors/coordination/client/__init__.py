"""The client of the lock service: requests, leases, and the calls that programs use."""
