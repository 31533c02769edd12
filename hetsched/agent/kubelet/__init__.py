"""The kubelet of a machine: configuration, state, reserved CPUs and actual assignments."""
