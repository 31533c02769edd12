"""REST resources of workloads: submissions, decisions, reasons, the queue and holds."""
