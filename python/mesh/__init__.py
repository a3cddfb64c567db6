"""mesh, as a task sees it. See docs/worker-protocol.md."""
