"""Create the tables in a new database; a database that already has the migrations in `replaces` is not changed."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('policies', '0001_initial'), ('policies', '0002_kept_in_clusters'), ('policies', '0003_desk'), ('policies', '0004_golden_judged_on'), ('policies', '0005_plan_side'), ('policies', '0006_agreed_states'), ('policies', '0007_reported_column')]

    initial = True

    dependencies = [
        ('inventory', '0001_squashed_0019_reported_columns'),
    ]

    operations = [
        migrations.CreateModel(
            name='GoldenPlacement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\\Z', "Lower-case letters, digits and '-', at most 63 characters.")], verbose_name='name')),
                ('policy_name', models.CharField(blank=True, max_length=63, verbose_name='applies to policy')),
                ('manifest', models.TextField(verbose_name='pod')),
                ('pod', models.JSONField(editable=False)),
                ('expectation', models.JSONField(verbose_name='expectation')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('author', models.CharField(max_length=255, verbose_name='author')),
                ('reason', models.TextField(blank=True, verbose_name='reason')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('changed_at', models.DateTimeField(verbose_name='changed')),
                ('state', models.CharField(default='unknown', max_length=8, verbose_name='state')),
                ('got', models.CharField(blank=True, max_length=500, verbose_name='actual result')),
                ('checked_at', models.DateTimeField(null=True, verbose_name='checked at')),
                ('broken_since', models.DateTimeField(null=True, verbose_name='broken since')),
                ('decision', models.BigIntegerField(editable=False, null=True, verbose_name='created from decision')),
                ('judged_on', models.CharField(blank=True, editable=False, max_length=64)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='goldens', to='inventory.cluster', verbose_name='cluster')),
            ],
            options={
                'verbose_name': 'golden placement',
                'verbose_name_plural': 'golden placements',
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='AgreedState',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('content', models.BinaryField(verbose_name='cluster')),
                ('size', models.IntegerField(verbose_name='bytes')),
                ('golden', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='agreed_state', to='policies.goldenplacement')),
            ],
            options={
                'verbose_name': 'cluster state of a golden placement',
                'verbose_name_plural': 'cluster states of golden placements',
            },
        ),
        migrations.CreateModel(
            name='Policy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\\Z', "Lower-case letters, digits and '-', at most 63 characters.")], verbose_name='name')),
                ('description', models.CharField(blank=True, max_length=400, verbose_name='description')),
                ('active_version', models.IntegerField(default=0, verbose_name='active version')),
                ('keeper', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='inventory.cluster', verbose_name='stored in cluster')),
            ],
            options={
                'verbose_name': 'policy',
                'verbose_name_plural': 'policies',
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Measure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(verbose_name='at')),
                ('figures', models.JSONField(verbose_name='metrics')),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='measures', to='inventory.cluster', verbose_name='cluster')),
            ],
            options={
                'verbose_name': 'measurement',
                'verbose_name_plural': 'measurements',
                'ordering': ['cluster_id', 'at'],
                'constraints': [models.UniqueConstraint(fields=('cluster', 'at'), name='policies_measure_once')],
            },
        ),
        migrations.CreateModel(
            name='NamespaceRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('namespace', models.CharField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\\Z', "Lower-case letters, digits and '-', at most 63 characters.")], verbose_name='namespace')),
                ('default_policy', models.CharField(blank=True, max_length=63, verbose_name='default policy')),
                ('allowed_policies', models.JSONField(blank=True, default=list, verbose_name='allowed policies')),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rules', to='inventory.cluster', verbose_name='cluster')),
            ],
            options={
                'verbose_name': 'namespace rule',
                'verbose_name_plural': 'namespace rules',
                'ordering': ['cluster_id', 'namespace'],
                'constraints': [models.UniqueConstraint(fields=('cluster', 'namespace'), name='policies_rule_namespace')],
            },
        ),
        migrations.CreateModel(
            name='PolicyObject',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=253, verbose_name='name')),
                ('uid', models.CharField(max_length=64, verbose_name='uid')),
                ('generation', models.BigIntegerField(verbose_name='generation')),
                ('spec', models.JSONField(null=True, verbose_name='content')),
                ('problem', models.JSONField(null=True, verbose_name='problem')),
                ('version', models.IntegerField(default=0, verbose_name='latest accepted version')),
                ('gone', models.BooleanField(default=False, verbose_name='deleted')),
                ('judged_at', models.DateTimeField(verbose_name='checked at')),
                ('since', models.DateTimeField(verbose_name='accepted or rejected since')),
                ('reported', models.BooleanField(default=False)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='policies', to='inventory.cluster', verbose_name='cluster')),
            ],
            options={
                'verbose_name': 'policy object',
                'verbose_name_plural': 'policy objects',
                'ordering': ['name', 'cluster_id'],
                'constraints': [models.UniqueConstraint(fields=('cluster', 'name'), name='policies_object_once')],
            },
        ),
        migrations.CreateModel(
            name='PolicyPlan',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\\Z', "Lower-case letters, digits and '-', at most 63 characters.")], verbose_name='name')),
                ('once', models.JSONField(null=True, verbose_name='once')),
                ('condition', models.JSONField(null=True, verbose_name='condition')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('author', models.CharField(max_length=255, verbose_name='author')),
                ('reason', models.TextField(blank=True, verbose_name='reason')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('changed_at', models.DateTimeField(verbose_name='changed')),
                ('state', models.CharField(default='waiting', max_length=8, verbose_name='state')),
                ('note', models.CharField(blank=True, max_length=1000, verbose_name='note')),
                ('due_at', models.DateTimeField(editable=False, verbose_name='due')),
                ('last_looked_at', models.DateTimeField(null=True, verbose_name='checked at')),
                ('last_value', models.FloatField(null=True, verbose_name='last value')),
                ('side', models.CharField(blank=True, editable=False, max_length=5)),
                ('above_since', models.DateTimeField(null=True, verbose_name='above since')),
                ('below_since', models.DateTimeField(null=True, verbose_name='below since')),
                ('last_switched_at', models.DateTimeField(null=True, verbose_name='last activated')),
                ('cluster', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='plans', to='inventory.cluster', verbose_name='cluster')),
                ('policy', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='plans', to='policies.policy', verbose_name='policy')),
            ],
            options={
                'verbose_name': 'policy plan',
                'verbose_name_plural': 'policy plans',
                'ordering': ['name'],
                'indexes': [models.Index(condition=models.Q(('enabled', True)), fields=['due_at'], name='policies_plan_due')],
            },
        ),
        migrations.CreateModel(
            name='PolicyRevision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.IntegerField(verbose_name='version')),
                ('spec', models.JSONField(verbose_name='content')),
                ('state', models.CharField(choices=[('draft', 'draft'), ('active', 'active'), ('retired', 'retired')], default='draft', max_length=8, verbose_name='state')),
                ('author', models.CharField(max_length=255, verbose_name='author')),
                ('reason', models.TextField(blank=True, verbose_name='reason')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('activated_at', models.DateTimeField(null=True, verbose_name='activated')),
                ('policy', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='revisions', to='policies.policy', verbose_name='policy')),
            ],
            options={
                'verbose_name': 'policy revision',
                'verbose_name_plural': 'policy revisions',
                'ordering': ['policy_id', '-version'],
                'constraints': [models.UniqueConstraint(fields=('policy', 'version'), name='policies_revision_version'), models.UniqueConstraint(condition=models.Q(('state', 'active')), fields=('policy',), name='policies_revision_one_active'), models.CheckConstraint(condition=models.Q(('state__in', ['draft', 'active', 'retired'])), name='policies_revision_state')],
            },
        ),
        migrations.CreateModel(
            name='Preview',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.IntegerField(verbose_name='version')),
                ('asked', models.JSONField(verbose_name='parameters')),
                ('state', models.CharField(default='waiting', max_length=10, verbose_name='state')),
                ('progress', models.FloatField(default=0.0, verbose_name='progress')),
                ('asked_by', models.CharField(max_length=255, verbose_name='requested by')),
                ('owner', models.CharField(max_length=200, verbose_name='owner')),
                ('asked_at', models.DateTimeField(verbose_name='requested at')),
                ('started_at', models.DateTimeField(null=True, verbose_name='started')),
                ('ended_at', models.DateTimeField(null=True, verbose_name='ended')),
                ('seen_at', models.DateTimeField(null=True, verbose_name='last heartbeat')),
                ('problem', models.JSONField(null=True, verbose_name='problem')),
                ('result', models.JSONField(null=True, verbose_name='result')),
                ('changes', models.JSONField(default=tuple, verbose_name='changes')),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='previews', to='inventory.cluster', verbose_name='cluster')),
                ('policy', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='previews', to='policies.policy', verbose_name='policy')),
            ],
            options={
                'verbose_name': 'policy preview',
                'verbose_name_plural': 'policy previews',
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ['running', 'waiting'])), fields=('owner',), name='policies_preview_one')],
            },
        ),
    ]
