from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0012_devices")]

    operations = [
        migrations.AddField(
            model_name="pod",
            name="tell_failed_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
