"""Create the tables in a new database; a database that already has the migrations in `replaces` is not changed."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('access', '0001_initial'), ('access', '0002_token_nodes'), ('access', '0003_token_endings'), ('access', '0004_limits'), ('access', '0005_accounts')]

    initial = True

    dependencies = [
        ('auth', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='Bucket',
            fields=[
                ('key', models.CharField(max_length=300, primary_key=True, serialize=False)),
                ('full_at', models.BigIntegerField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name='LoginFailure',
            fields=[
                ('key', models.CharField(max_length=300, primary_key=True, serialize=False)),
                ('count', models.PositiveIntegerField(default=0)),
                ('window_ends_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='BrowserSession',
            fields=[
                ('session_key', models.CharField(max_length=40, primary_key=True, serialize=False, verbose_name='session key')),
                ('session_data', models.TextField(verbose_name='session data')),
                ('expire_date', models.DateTimeField(db_index=True, verbose_name='expire date')),
                ('started_at', models.DateTimeField(null=True, verbose_name='signed in')),
                ('seen_at', models.DateTimeField(verbose_name='last seen')),
                ('address', models.CharField(blank=True, max_length=45, verbose_name='address')),
                ('browser', models.CharField(blank=True, max_length=200, verbose_name='browser')),
                ('account', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='browser_sessions', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'session',
                'verbose_name_plural': 'sessions',
            },
        ),
        migrations.CreateModel(
            name='ExternalAccount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('issuer', models.CharField(max_length=300, verbose_name='issuer')),
                ('subject', models.CharField(max_length=255, verbose_name='subject')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='external', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'external account',
                'verbose_name_plural': 'external accounts',
                'constraints': [models.UniqueConstraint(fields=('issuer', 'subject'), name='access_external_account_once')],
            },
        ),
        migrations.CreateModel(
            name='Token',
            fields=[
                ('digest', models.CharField(max_length=128, primary_key=True, serialize=False)),
                ('token_key', models.CharField(db_index=True, max_length=25)),
                ('created', models.DateTimeField(auto_now_add=True)),
                ('expiry', models.DateTimeField(blank=True, null=True)),
                ('name', models.CharField(max_length=100, verbose_name='name')),
                ('role', models.CharField(choices=[('viewer', 'viewer'), ('submitter', 'submitter'), ('operator', 'operator'), ('policy-admin', 'policy-admin'), ('agent', 'agent')], max_length=20, verbose_name='role')),
                ('namespaces', models.JSONField(blank=True, default=list, help_text='If empty, all namespaces are allowed.', verbose_name='namespaces')),
                ('cluster', models.CharField(blank=True, max_length=63, verbose_name='cluster')),
                ('node', models.CharField(blank=True, max_length=253, verbose_name='node')),
                ('ending', models.CharField(blank=True, default='', editable=False, max_length=4, verbose_name='ends with')),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='last used')),
                ('most_priority', models.IntegerField(blank=True, help_text='Applies to the pods submitted with the token.', null=True, verbose_name='maximum pod priority')),
                ('submits_per_minute', models.PositiveIntegerField(blank=True, help_text='Replaces the default limit of the server.', null=True, verbose_name='submissions per minute')),
                ('quota', models.JSONField(blank=True, default=dict, help_text='Total requests of all unfinished pods of the token, as quantities: pods, cpu, memory and so on.', verbose_name='quota')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='auth_token_set', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'token',
                'verbose_name_plural': 'tokens',
                'constraints': [models.CheckConstraint(condition=models.Q(('role__in', ['viewer', 'submitter', 'operator', 'policy-admin', 'agent'])), name='access_token_role_known'), models.CheckConstraint(condition=models.Q(('node', ''), models.Q(('role', 'agent'), models.Q(('cluster', ''), _negated=True)), _connector='OR'), name='access_token_node_of_agent')],
            },
        ),
    ]
