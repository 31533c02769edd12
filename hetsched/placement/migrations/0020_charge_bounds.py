"""The quota that a workload was counted against, so that whoever looks can tell whether it is kept."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0019_hold_amounts")]

    operations = [
        migrations.AddField(
            model_name="charge", name="bounds", field=models.JSONField(default=dict, verbose_name="quota")
        ),
    ]
