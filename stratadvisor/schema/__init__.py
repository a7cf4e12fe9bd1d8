"""Every document the tool reads or writes, and the planning view of a cluster."""
