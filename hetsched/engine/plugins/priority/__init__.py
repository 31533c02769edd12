"""Order the queue, preempt pods and enforce quotas."""
