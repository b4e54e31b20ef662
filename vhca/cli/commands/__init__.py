"""The commands, one module each: NAME, SUMMARY, DESCRIPTION, EPILOG, `add_arguments`, `execute`."""
