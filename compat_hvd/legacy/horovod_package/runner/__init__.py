"""The few functions of Horovod's runner that scripts and tests reach for; jobs are started by compat-hvdrun."""
