"""The referee checks the promises of replay libraries, in the same way for each."""
