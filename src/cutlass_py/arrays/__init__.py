"""Arrays of any framework: streams, allocation, dtypes, devices."""
