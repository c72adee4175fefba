"""What all programs have in common: flags from declarations, flag files, help, the frame, exit codes."""
