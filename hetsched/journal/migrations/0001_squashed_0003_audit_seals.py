"""Create the tables of a new database; a database that has the migrations in `replaces` stays unchanged."""

from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('journal', '0001_initial'), ('journal', '0002_figures'), ('journal', '0003_audit_seals')]

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='AuditSeal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('first_entry', models.BigIntegerField(unique=True, verbose_name='first entry')),
                ('last_entry', models.BigIntegerField(verbose_name='last entry')),
                ('entries', models.IntegerField(verbose_name='entries')),
                ('digest', models.CharField(max_length=64, verbose_name='digest')),
                ('key', models.CharField(blank=True, max_length=16, verbose_name='key')),
                ('sealed_at', models.DateTimeField(auto_now_add=True, verbose_name='sealed')),
                ('verified_at', models.DateTimeField(db_index=True, verbose_name='verified')),
                ('problem', models.CharField(blank=True, max_length=200, verbose_name='problem')),
            ],
            options={
                'verbose_name': 'seal of the audit trail',
                'verbose_name_plural': 'seals of the audit trail',
            },
        ),
        migrations.CreateModel(
            name='Topic',
            fields=[
                ('name', models.CharField(max_length=400, primary_key=True, serialize=False, verbose_name='name')),
                ('revision', models.BigIntegerField(default=0, verbose_name='revision')),
            ],
            options={
                'verbose_name': 'topic',
                'verbose_name_plural': 'topics',
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True, verbose_name='time')),
                ('actor', models.CharField(max_length=255, verbose_name='actor')),
                ('role', models.CharField(blank=True, max_length=100, verbose_name='role')),
                ('action', models.CharField(db_index=True, max_length=60, verbose_name='action')),
                ('object_kind', models.CharField(max_length=60, verbose_name='object kind')),
                ('object_name', models.CharField(max_length=400, verbose_name='object')),
                ('reason', models.TextField(blank=True, verbose_name='reason')),
                ('details', models.JSONField(default=dict, verbose_name='details')),
                ('request_id', models.CharField(blank=True, default='', max_length=64, verbose_name='request')),
            ],
            options={
                'verbose_name': 'audit entry',
                'verbose_name_plural': 'audit entries',
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['object_kind', 'object_name'], name='journal_audit_object')],
            },
        ),
        migrations.CreateModel(
            name='Figure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('labels', models.CharField(max_length=400)),
                ('part', models.CharField(blank=True, max_length=20)),
                ('value', models.FloatField()),
                ('at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('name', 'labels', 'part'), name='journal_figure_once')],
            },
        ),
        migrations.CreateModel(
            name='OutboxEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('topic', models.CharField(max_length=400, verbose_name='topic')),
                ('revision', models.BigIntegerField(verbose_name='revision')),
                ('data', models.JSONField(verbose_name='data')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('published_at', models.DateTimeField(null=True, verbose_name='published')),
            ],
            options={
                'verbose_name': 'outbox event',
                'verbose_name_plural': 'outbox events',
                'indexes': [models.Index(condition=models.Q(('published_at', None)), fields=['id'], name='journal_event_unsent'), models.Index(fields=['created_at'], name='journal_event_age')],
                'constraints': [models.UniqueConstraint(fields=('topic', 'revision'), name='journal_event_once')],
            },
        ),
    ]
