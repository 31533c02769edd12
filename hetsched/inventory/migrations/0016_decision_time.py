from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0015_isa_whole'),
    ]

    operations = [
        migrations.AddField(
            model_name='cluster',
            name='decision_time',
            field=models.JSONField(blank=True, default=dict, editable=False, verbose_name='decision time'),
        ),
    ]
