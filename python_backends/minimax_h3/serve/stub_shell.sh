# Read by the shell that starts each stub of a model: only tritonserver itself needs a large stack.
ulimit -Ss 8192
