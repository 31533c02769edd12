"""Index reservations that were continued by another reservation of the same pod, by the time of the change."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("placement", "0021_in_place_changes")]

    operations = [
        migrations.AddIndex(
            model_name="reservation",
            index=models.Index(
                fields=["cluster", "released_at"],
                name="placement_reservation_went_on",
                condition=models.Q(release_reason__in=("the pod changed in place", "its node gave it other cards")),
            ),
        )
    ]
