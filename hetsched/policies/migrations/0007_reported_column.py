from django.db import migrations, models


class Migration(migrations.Migration):
    """Name the column for the report of a review result by that word."""

    dependencies = [
        ("policies", "0006_agreed_states"),
    ]

    operations = [
        migrations.RenameField(model_name="policyobject", old_name="told", new_name="reported"),
        migrations.AlterField(
            model_name="policyobject", name="reported", field=models.BooleanField(default=False)
        ),
    ]
