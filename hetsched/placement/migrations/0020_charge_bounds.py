"""Store the quota that applied when a workload was charged, so that compliance can be checked later."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0019_hold_amounts")]

    operations = [
        migrations.AddField(
            model_name="charge", name="bounds", field=models.JSONField(default=dict, verbose_name="quota")
        ),
    ]
