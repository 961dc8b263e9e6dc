"""What people look at: pictures of predictions, curves, and the report of runs."""
