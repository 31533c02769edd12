from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inventory", "0004_connection_identity")]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="decisive_revision",
            field=models.BigIntegerField(default=0, verbose_name="decisive revision"),
        ),
        # Decisions from before this migration become void.
        migrations.RunSQL("UPDATE inventory_cluster SET decisive_revision = revision", migrations.RunSQL.noop),
    ]
