"""An edge: snapshots in object storage, which workers begin from and write. Needs the extra `s3`."""
