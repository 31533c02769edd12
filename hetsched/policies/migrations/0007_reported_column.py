from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename the column that says whether a review result was written to the object's status to `reported`."""

    dependencies = [
        ("policies", "0006_agreed_states"),
    ]

    operations = [
        migrations.RenameField(model_name="policyobject", old_name="told", new_name="reported"),
        migrations.AlterField(
            model_name="policyobject", name="reported", field=models.BooleanField(default=False)
        ),
    ]
