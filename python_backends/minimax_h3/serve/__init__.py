"""Starting, watching and stopping tritonserver with this model repository."""
