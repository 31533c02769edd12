"""Add columns for the number of installed GPUs and for the parts in maintenance, which count as capacity."""

from collections import Counter

from django.db import migrations, models

_MAINTAINED = {("card", "maintenance"): "card", ("offline-capacity", "0"): "zone"}


def _maintenance(overrides):
    found = []
    for one in overrides or ():
        kind, _, name = one["fact"].partition(".")
        part = _MAINTAINED.get((kind, one["value"]))
        if part is not None:
            kept = {key: one[key] for key in ("until", "since", "by", "reason")}
            found.append({"part": part, "name": name, **kept})
    return found


def fill(apps, schema_editor):
    nodes = apps.get_model("inventory", "Node").objects
    installed = Counter()
    for row in nodes.only("id", "cluster_id", "card_count", "report").iterator(chunk_size=500):
        cards = row.report.get("gpus")
        count = row.card_count if cards is None else len(cards)
        installed[row.cluster_id] += count
        if count:
            nodes.filter(pk=row.pk).update(cards_installed=count)
    for pk, count in installed.items():
        apps.get_model("inventory", "Cluster").objects.filter(pk=pk).update(cards_installed=count)
    for facts in apps.get_model("inventory", "NodeFacts").objects.exclude(overrides=[]).only("node_id", "overrides"):
        if found := _maintenance(facts.overrides):
            nodes.filter(pk=facts.node_id).update(maintenance=found)


class Migration(migrations.Migration):

    dependencies = [
        ("inventory", "0016_decision_time"),
    ]

    operations = [
        migrations.AddField("cluster", "cards_installed", models.IntegerField(default=0, verbose_name="cards installed")),
        migrations.AddField("node", "cards_installed", models.IntegerField(default=0, verbose_name="cards installed")),
        migrations.AddField(
            "node", "maintenance", models.JSONField(blank=True, default=tuple, verbose_name="in maintenance")
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
