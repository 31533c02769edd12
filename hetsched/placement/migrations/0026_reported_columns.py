from django.db import migrations


class Migration(migrations.Migration):
    """Rename the columns about reports to a pod's cluster, so that both names contain *report*."""

    dependencies = [
        ("placement", "0025_eviction_moves"),
    ]

    operations = [
        migrations.RenameField(model_name="pod", old_name="told_decision", new_name="reported_decision"),
        migrations.RenameField(model_name="pod", old_name="tell_failed_at", new_name="report_failed_at"),
    ]
