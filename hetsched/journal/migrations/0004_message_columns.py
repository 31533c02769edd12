from django.db import migrations, models


class Migration(migrations.Migration):
    """Remove the length limit of columns with messages, because they also store parameters; the rows are unchanged."""

    dependencies = [
        ("journal", "0003_audit_seals"),
    ]

    operations = [
        migrations.AlterField("auditseal", "problem", models.TextField(blank=True, verbose_name="problem")),
    ]
