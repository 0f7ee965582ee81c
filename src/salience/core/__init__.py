"""What everything stands on: values, passes, the executor. It knows no method, no metric and no file format."""
