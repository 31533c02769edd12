"""Two dozen production bugs of other schedulers, seeded into this one.

A bug is an exact piece of source text and its replacement; the named test must fail with it. A text that does not occur
exactly once is an error, so outdated entries are detected. Source: the threads named in `known`.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A bug: `find` in `file` is replaced by `put`, and `test` must fail."""

    name: str
    what: str
    known: str
    file: str
    find: str
    put: str
    test: str


BUGS = (
    Bug(
        "K1", "a binding that succeeded without an answer frees what it holds", "kubernetes-client/python#547",
        "hetsched/adapters/kubernetes/pods/binding.py",
        "            return read_back(api, request, waiting=BindingResult.UNKNOWN)\n",
        "            return BindingOutcome(request.pod_id, BindingResult.REFUSED, str(failure))\n",
        "tests/kube/test_binding_faults.py::test_lost_response_is_read_back",
    ),
    Bug(
        "K2", "a binding names the pod by name alone", "kubernetes/kubernetes#102761",
        "hetsched/adapters/kubernetes/pods/binding.py",
        '"namespace": namespace, "uid": uid, "annotations"', '"namespace": namespace, "annotations"',
        "tests/kube/test_binding_results.py::test_recreated_pod_with_another_uid_is_not_bound",
    ),
    Bug(
        "K3", "decisions begin before everything is known", "Project-HAMi/HAMi#1495, volcano-sh/volcano#5174",
        "hetsched/inventory/node_events.py",
        "    return syncs.exists() and not syncs.exclude(fresh).exists()\n", "    return True\n",
        "tests/apps/test_live_cluster_sync.py::test_nothing_is_decided_before_every_required_kind_is_known",
    ),
    Bug(
        "K4", "a pod that is being deleted is not charged", "Project-HAMi/HAMi#2812",
        "hetsched/placement/actions/watch/pod_transitions.py",
        "        if seen.node_name:\n            self.charged.append(seen)\n",
        "        if seen.node_name and not seen.deleting:\n            self.charged.append(seen)\n",
        "tests/apps/test_live_cluster_sync.py::test_terminating_pod_on_a_node_is_charged",
    ),
    Bug(
        "K5", "a standby does not take in what the leader gave", "koordinator-sh/koordinator#1289",
        "hetsched/placement/scheduler_cache.py",
        "if not contains_revision(snapshot, reservation.revision) and reservation.is_active_at(revision):\n",
        "if False and reservation.is_active_at(revision):\n",
        "tests/apps/test_scheduler_cache.py::"
        "test_cache_applies_missed_reservations_and_releases_without_a_rebuild",
    ),
    Bug(
        "K6", "what is held expires while its binding is slow", "kubernetes/kubernetes#106361",
        "hetsched/scheduling/binding_cycle.py",
        "_by_message(by_result[BindingResult.REFUSED])",
        "_by_message(by_result[BindingResult.REFUSED] + by_result[BindingResult.UNKNOWN])",
        "tests/kube/test_binding_faults.py::test_busy_server_leaves_the_pod_with_its_reservation",
    ),
    Bug(
        "K7", "nothing but memory keeps two allocators apart", "volcano-sh/volcano#3824, kubernetes/kubernetes#136269",
        "hetsched/placement/migrations/0001_squashed_0027_message_columns.py",
        "fields=('node', 'cpu'), name='placement_cpu_one_holder'",
        "fields=('node', 'cpu', 'reservation'), name='placement_cpu_one_holder'",
        "tests/apps/test_recording.py::test_database_rejects_an_exclusive_cpu_granted_twice",
    ),
    Bug(
        "K8", "a pod deleted by force frees its CPUs at once", "kubernetes/kubernetes#141471",
        "hetsched/placement/actions/terminating_pods.py",
        "    found = [row.pk for row in rows if State(row.state) in _STARTED]\n", "    found: list[int] = []\n",
        "tests/apps/test_forced_deletion.py::test_resources_stay_reserved_for_the_period_and_are_released",
    ),
    Bug(
        "K9", "a lock is over while its holder sleeps, and both write", "Project-HAMi/HAMi#3096",
        "hetsched/inventory/node_loads.py",
        "(0, _ANY) if epoch is None else (epoch, epoch)", "(0, _ANY)",
        "tests/apps/test_recording.py::test_stale_epoch_writes_nothing",
    ),
    Bug(
        "K10", "only the first container of a pod is counted", "Project-HAMi/HAMi#2622",
        "hetsched/adapters/objects/requests.py",
        "for c in containers], before)\n",
        "for c in containers[:1]], before)\n",
        "tests/unit/adapters/test_effective_requests.py",
    ),
    Bug(
        "K11", "a pod of another scheduler never frees its node", "volcano-sh/volcano#2265, Project-HAMi/HAMi#2923",
        "hetsched/placement/actions/watch/pod_transitions.py",
        "if State(row.state) in HOLDING], Message(\"the pod was deleted\"))\n",
        "if State(row.state) in HOLDING and row.workload_id], Message(\"the pod was deleted\"))\n",
        "tests/apps/test_live_cluster_sync.py::test_pod_on_a_node_is_charged_for_any_scheduler",
    ),
    Bug(
        "K12", "a node that comes back is empty", "kubernetes-sigs/kueue#8755",
        "hetsched/inventory/node_events.py",
        "        if node.pods or may_hold:\n            report = ", "        if False:\n            report = ",
        "tests/apps/test_live_cluster_sync.py::"
        "test_deleted_node_stays_while_it_has_reservations",
    ),
    Bug(
        "K13", "pods that were seen before their node are never charged", "volcano-sh/volcano#4888",
        "hetsched/placement/actions/watch/batches.py",
        "            charge_unassigned_pods(batch.change)\n", "            pass\n",
        "tests/kube/test_watch_faults.py::"
        "test_pod_seen_before_its_node_is_charged_with_the_node",
    ),
    Bug(
        "K14", "gangs that cannot be whole keep what they have", "koordinator-sh/koordinator#872",
        "hetsched/engine/framework/cycle.py",
        "        while self.waiting_pods.to_undo:\n"
        "            self._undo_placement(self.waiting_pods.to_undo.popleft())\n",
        "        self.waiting_pods.to_undo.clear()\n",
        "tests/unit/engine/test_gang_plugin.py::test_permit_timeout_rejects_all_members_and_backs_off_the_gang",
    ),
    Bug(
        "K15", "half a gang stays where its other half was refused", "Project-HAMi/HAMi#1832",
        "hetsched/scheduling/binding_cycle.py",
        "        if by_result[result]:\n            recover_gangs(",
        "        if False:\n            recover_gangs(",
        "tests/workers/test_partially_bound_gangs.py::test_unbound_members_are_requeued_with_the_reason",
    ),
    Bug(
        "K16", "a share is put on a card that is full", "koordinator-sh/koordinator#3173",
        "hetsched/engine/gpu/eligibility.py",
        '        enough: Bools = nodes.load("card_milli_free") >= self.demand.milli\n',
        '        enough: Bools = nodes.load("card_milli_free") > 0\n',
        "tests/unit/engine/test_gpu_fit.py",
    ),
    Bug(
        "K17", "a release and an allocation cross", "apache/yunikorn-k8shim#265, volcano-sh/volcano#5500",
        "hetsched/placement/scheduler_cache.py",
        "                and end <= revision\n                and end not in written\n",
        "                and end > revision\n",
        "tests/apps/test_scheduler_cache.py::test_recreated_pod_is_charged_once",
    ),
    Bug(
        "K18", "the agent does not outlive a state that is not written whole", "kubernetes/kubernetes#136604",
        "hetsched/agent/pins/state.py",
        "        except (OSError, ValueError) as error:\n            self.problem",
        "        except OSError as error:\n            self.problem",
        "tests/unit/agent/pins/test_pin_reconciliation.py::test_damaged_state_file_is_replaced",
    ),
    Bug(
        "K19", "an annotation that a tenant wrote is an allocation", "Project-HAMi/HAMi#3041",
        "hetsched/contracts/messages/signatures.py",
        '    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass"))\n',
        "    return True\n",
        "tests/unit/agent/pins/test_signed_allocations.py::test_forged_replayed_and_foreign_allocations_are_rejected",
    ),
    Bug(
        "K20", "an event that was missed leaves its pod waiting for ever", "kubernetes/kubernetes#102790",
        "workers/sweep.py",
        "    return active_pods(cluster_id).exists() and not leading.is_held(cluster_id)\n", "    return False\n",
        "tests/workers/test_sweep_and_binding.py::test_due_pods_without_a_leader_wake_the_scheduler",
    ),
    Bug(
        "K21", "a node that decision and ledger disagree on is tried for ever", "hashicorp/nomad#9506",
        "hetsched/placement/actions/reservation_conflicts.py",
        "        if refusals.count() >= MOST:\n", "        if False:\n",
        "tests/workers/test_node_conflict_cordon.py::"
        "test_seeded_conflict_cordons_the_node_and_pods_go_elsewhere",
    ),
    Bug(
        "K22", "an object deleted while no watch was open stays", "kubernetes-client/python#1896",
        "hetsched/adapters/kubernetes/reflector.py",
        "        for key in sorted(missing):\n", "        for key in ():\n",
        "tests/unit/adapters/test_reflector_faults.py::"
        "test_objects_deleted_during_a_history_gap_are_reported_deleted",
    ),
    Bug(
        "K23", "two beats do everything twice", "celery/celery#2856",
        "hetsched/inventory/collection.py",
        "    return row if taken else None\n", "    return row\n",
        "tests/apps/test_collected_facts.py::test_two_beat_processes_run_a_collector_once",
    ),
    Bug(
        "K24", "what the message layer lost is never missed", "django/channels_redis#172",
        "web/live/hub.py",
        "        if (revision - 1 if since is None else since) > known:\n", "        if False:\n",
        "tests/live/test_viewer_convergence.py::test_missing_event_is_detected_by_the_next_event",
    ),
)  # fmt: skip
