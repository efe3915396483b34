"""What is told of calls: log lines, scripts that repeat a failure, output on a terminal."""
