"""Convert the pod groups in `definitions` from the minimum size of the gang to all fields of the PodGroup."""

from django.db import migrations


def widen(apps, schema_editor):
    cluster = apps.get_model("inventory", "Cluster")
    for row in cluster.objects.only("id", "definitions").iterator():
        groups = row.definitions.get("pod_groups", {})
        sizes = {key: size for key, size in groups.items() if isinstance(size, int)}
        if sizes:
            groups.update({key: {"min_member": size} for key, size in sizes.items()})
            row.save(update_fields=["definitions"])


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0001_initial'),
    ]

    operations = [migrations.RunPython(widen, migrations.RunPython.noop)]
