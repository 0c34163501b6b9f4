"""Code that several tests share: problems and logs, file writers, command runners."""
