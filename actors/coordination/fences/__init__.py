"""Resources that refuse writes with an old fencing token."""
