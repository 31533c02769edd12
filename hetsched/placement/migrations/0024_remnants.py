"""Index the orphaned pods (remnants) of a cluster, so that their query does not read the running pods."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0023_preemptions")]

    operations = [
        migrations.AddIndex(
            model_name="pod",
            index=models.Index(
                fields=["cluster", "state"], name="placement_pod_remnant", condition=models.Q(origin="remnant")
            ),
        )
    ]
