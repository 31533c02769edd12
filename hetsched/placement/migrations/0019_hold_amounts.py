"""Store the amounts that a hold uses of its owner's quota."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0018_limits")]

    operations = [
        migrations.AddField(
            model_name="hold", name="amounts", field=models.JSONField(default=dict, verbose_name="amounts")
        ),
    ]
