"""Locks beside ZooKeeper's and etcd's: the same clients, the same machine, in turn."""
