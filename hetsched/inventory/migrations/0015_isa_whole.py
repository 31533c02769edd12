"""Store the complete instruction set of a node; it was truncated to 400 characters before."""

from django.db import migrations, models
from django.db.models.functions import Length

_CUT = 350  # the text was cut at the end of an extension, so it may be shorter than 400


def spell_out(apps, schema_editor):
    nodes = apps.get_model("inventory", "Node").objects
    for row in nodes.annotate(length=Length("isa")).filter(length__gt=_CUT).only("id", "report").iterator():
        native = (row.report.get("isa") or {}).get("native")
        if native:
            nodes.filter(pk=row.pk).update(isa=native)


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0014_collectors'),
    ]

    operations = [
        migrations.AlterField(
            model_name='node',
            name='isa',
            field=models.TextField(blank=True, verbose_name='ISA'),
        ),
        migrations.RunPython(spell_out, migrations.RunPython.noop),
    ]
