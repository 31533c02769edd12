"""Store the changed request of a reservation, and a fingerprint by which unchanged pods are recognised."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0020_charge_bounds")]

    operations = [
        migrations.AddField(
            model_name="reservation",
            name="spec",
            field=models.JSONField(null=True, verbose_name="request after an in-place change"),
        ),
        migrations.AddField(
            model_name="pod",
            name="fingerprint",
            field=models.CharField(blank=True, default="", editable=False, max_length=16),
        ),
    ]
