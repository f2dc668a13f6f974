"""Framework-free Python: identity, MPI, the native engine, process sets, configuration, exceptions."""
