# Aliases for the targets of dev.py. Arguments: make test ARGS="-k cpuset".
PYTHON ?= python3
TARGETS := run test chaos differential fuzz properties gauntlet matrix mutations upstream docs release screenshots fast lint fmt audit bench load soak setup lock kube kube-up clean

.PHONY: help $(TARGETS)
help:
	@$(PYTHON) dev.py help

$(TARGETS):
	@$(PYTHON) dev.py $@ $(ARGS)
