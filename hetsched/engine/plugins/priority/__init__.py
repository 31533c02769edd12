"""Order the queue, preempt pods and keep quotas."""
