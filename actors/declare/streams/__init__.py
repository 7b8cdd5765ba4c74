"""Windows, joins, tables and other keys: what an app declares over the records of topics."""
