"""Everything that touches the world: sockets, clock, HTTP, logs. It takes no decisions about rooms."""
