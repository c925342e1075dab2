"""The subcommands of ``prefixd``, one file each; what is slow to import is imported when one runs."""
