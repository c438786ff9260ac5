"""`baton usage`: adds up the lines of the ledger for a bill. Reads files; talks to no process and changes nothing."""
