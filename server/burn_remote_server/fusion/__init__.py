"""Operation fusion, with the classes of Burn's ``burn-fusion``: runs of operations become one."""
