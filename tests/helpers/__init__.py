"""What several tests share: builders of problems and logs, writers of files, runners of commands."""
