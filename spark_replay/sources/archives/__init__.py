"""An archive's folder: its ledgers, digests and files, read as a source."""
