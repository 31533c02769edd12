import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Rename three models and two attributes; the tables and columns keep their names."""

    dependencies = [
        ("placement", "0027_message_columns"),
    ]

    operations = [
        migrations.AlterField(
            "decision",
            "room",
            models.CharField(blank=True, db_column="room", max_length=320, verbose_name="used capacity of a hold"),
        ),
        migrations.RenameField("decision", "room", "used_reservation"),
        migrations.AlterField(
            "rebalancemove",
            "came_to",
            models.CharField(blank=True, db_column="came_to", max_length=253, verbose_name="actual node"),
        ),
        migrations.RenameField("rebalancemove", "came_to", "actual_node"),
        migrations.AlterModelTable("handedout", "placement_handedout"),
        migrations.RenameModel("HandedOut", "DevicePluginAllocation"),
        migrations.AlterField(
            "devicepluginallocation",
            "pod",
            models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="device_allocation",
                to="placement.pod",
                verbose_name="pod",
            ),
        ),
        migrations.AlterModelTable("halfgang", "placement_halfgang"),
        migrations.RenameModel("HalfGang", "PartiallyBoundGang"),
        migrations.AlterModelTable("commitrefusal", "placement_commitrefusal"),
        migrations.RenameModel("CommitRefusal", "RejectedCommit"),
    ]
