"""All HTTP: queries, the dashboard, access, metrics and health."""
