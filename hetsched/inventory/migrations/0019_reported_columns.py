from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename the columns about reports of agents and collectors to `reported`, `reported_at` and `nodes_reported`."""

    dependencies = [
        ("inventory", "0018_node_sample_due"),
    ]

    operations = [
        migrations.RenameField(model_name="nodefacts", old_name="told", new_name="reported"),
        migrations.RenameField(model_name="nodefacts", old_name="heard_at", new_name="reported_at"),
        migrations.RenameField(model_name="collector", old_name="nodes_told", new_name="nodes_reported"),
        migrations.AlterField(model_name="nodefacts", name="reported_at", field=models.DateTimeField(null=True)),
    ]
