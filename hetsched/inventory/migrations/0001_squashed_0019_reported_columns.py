"""Create the tables of a new database; a database with the migrations in `replaces` is not changed."""

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import hetsched.contracts.objects.cluster
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [('inventory', '0001_initial'), ('inventory', '0002_pod_groups'), ('inventory', '0003_kubernetes'), ('inventory', '0004_connection_identity'), ('inventory', '0005_decisive_revision'), ('inventory', '0006_connection_installation'), ('inventory', '0007_retries_and_shadows'), ('inventory', '0008_node_doubts'), ('inventory', '0009_images'), ('inventory', '0010_node_samples'), ('inventory', '0011_definitions_revision'), ('inventory', '0012_node_facts'), ('inventory', '0013_discovery'), ('inventory', '0014_collectors'), ('inventory', '0015_isa_whole'), ('inventory', '0016_decision_time'), ('inventory', '0017_cards_installed'), ('inventory', '0018_node_sample_due'), ('inventory', '0019_reported_columns')]

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Cluster',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\\Z', "Lower-case letters, digits and '-', at most 63 characters.")], verbose_name='name')),
                ('kind', models.CharField(choices=[('offline', 'offline: nodes come from files, placements are stored only in hetsched'), ('demo', 'demo: simulated, with a stream of workloads'), ('kubernetes', 'kubernetes: hetsched watches an API server and binds pods there')], default='offline', max_length=12, verbose_name='kind')),
                ('policy_name', models.CharField(default='hetsched', max_length=63, verbose_name='policy')),
                ('definitions', models.JSONField(blank=True, default=hetsched.contracts.objects.cluster.ClusterContent, verbose_name='definitions')),
                ('revision', models.BigIntegerField(default=0, verbose_name='revision')),
                ('inventory_revision', models.BigIntegerField(default=0, verbose_name='inventory revision')),
                ('layout_revision', models.BigIntegerField(default=0, verbose_name='layout revision')),
                ('definitions_revision', models.BigIntegerField(default=0, verbose_name='definitions revision')),
                ('decisive_revision', models.BigIntegerField(default=0, verbose_name='decisive revision')),
                ('baseline_revision', models.BigIntegerField(default=0, verbose_name='baseline revision')),
                ('stirred', models.JSONField(blank=True, default=dict, editable=False, verbose_name='changes')),
                ('decision_time', models.JSONField(blank=True, default=dict, editable=False, verbose_name='decision time')),
                ('forgotten_revision', models.BigIntegerField(default=0, verbose_name='reservations deleted up to revision')),
                ('leader_epoch', models.BigIntegerField(default=0, verbose_name='leader epoch')),
                ('leader_id', models.CharField(blank=True, max_length=120, verbose_name='leader')),
                ('leader_until', models.DateTimeField(blank=True, null=True, verbose_name='lease ends')),
                ('node_count', models.IntegerField(default=0, verbose_name='nodes')),
                ('ready_count', models.IntegerField(default=0, verbose_name='ready nodes')),
                ('card_count', models.IntegerField(default=0, verbose_name='GPUs')),
                ('cards_installed', models.IntegerField(default=0, verbose_name='installed GPUs')),
                ('capacity', models.JSONField(blank=True, default=dict, verbose_name='capacity')),
                ('requested', models.JSONField(blank=True, default=dict, verbose_name='requested')),
                ('gpu_milli_used', models.BigIntegerField(default=0, verbose_name='GPU thousandths in use')),
                ('demo_seed', models.BigIntegerField(default=0, verbose_name='demo seed')),
                ('demo_sequence', models.BigIntegerField(default=0, verbose_name='next demo workload')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
            ],
            options={
                'verbose_name': 'cluster',
                'verbose_name_plural': 'clusters',
                'ordering': ['id'],
                'constraints': [models.CheckConstraint(condition=models.Q(('kind__in', ['offline', 'demo', 'kubernetes'])), name='inventory_cluster_kind')],
            },
        ),
        migrations.CreateModel(
            name='Collector',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, verbose_name='name')),
                ('kind', models.CharField(max_length=63, verbose_name='kind')),
                ('params', models.JSONField(blank=True, default=dict, verbose_name='parameters')),
                ('sealed_token', models.TextField(blank=True, editable=False)),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('load', models.BooleanField(default=False, editable=False, verbose_name='measures usage')),
                ('interval_seconds', models.PositiveIntegerField(default=30, verbose_name='interval in seconds')),
                ('most_failures', models.PositiveIntegerField(default=1, verbose_name='failed queries until stale')),
                ('most_age_seconds', models.PositiveIntegerField(default=120, verbose_name='maximum sample age in seconds')),
                ('version', models.PositiveIntegerField(default=1, editable=False)),
                ('due_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('tried_at', models.DateTimeField(editable=False, null=True, verbose_name='last query')),
                ('answered_at', models.DateTimeField(editable=False, null=True, verbose_name='last response')),
                ('failures', models.PositiveIntegerField(default=0, editable=False, verbose_name='failures in a row')),
                ('failure_code', models.CharField(blank=True, editable=False, max_length=63)),
                ('failure', models.CharField(blank=True, editable=False, max_length=500, verbose_name='last failure')),
                ('stale_since', models.DateTimeField(editable=False, null=True, verbose_name='stale since')),
                ('problems', models.JSONField(blank=True, default=list, editable=False)),
                ('nodes_reported', models.PositiveIntegerField(default=0, editable=False, verbose_name='nodes')),
                ('nodes_stale', models.PositiveIntegerField(default=0, editable=False, verbose_name='nodes with stale samples')),
            ],
            options={
                'verbose_name': 'collector',
                'verbose_name_plural': 'collectors',
                'ordering': ['cluster_id', 'name'],
            },
        ),
        migrations.CreateModel(
            name='ImageIndex',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reference', models.CharField(max_length=600, verbose_name='image')),
                ('digest', models.CharField(blank=True, max_length=140, verbose_name='digest')),
                ('platforms', models.JSONField(default=list, verbose_name='platforms')),
                ('read_at', models.DateTimeField(null=True, verbose_name='read at')),
                ('code', models.CharField(blank=True, max_length=60, verbose_name='failure')),
                ('message', models.CharField(blank=True, max_length=500, verbose_name='read failure')),
                ('attempts', models.IntegerField(default=0, verbose_name='failures in a row')),
                ('wanted', models.BooleanField(default=True, verbose_name='wanted')),
                ('wanted_at', models.DateTimeField(verbose_name='requested at')),
                ('not_before', models.DateTimeField(verbose_name='not before')),
                ('secrets', models.JSONField(default=list, verbose_name='pull secrets')),
            ],
            options={
                'verbose_name': 'image',
                'verbose_name_plural': 'images',
                'ordering': ['reference'],
            },
        ),
        migrations.CreateModel(
            name='Node',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=253, verbose_name='name')),
                ('report', models.JSONField(verbose_name='report')),
                ('isa_family', models.CharField(default='unknown', max_length=12, verbose_name='ISA family')),
                ('isa', models.TextField(blank=True, verbose_name='ISA')),
                ('pool', models.CharField(max_length=63, verbose_name='pool')),
                ('ready', models.BooleanField(default=True, verbose_name='ready')),
                ('unschedulable', models.BooleanField(default=False, verbose_name='unschedulable')),
                ('cordoned_by_operator', models.BooleanField(default=False, verbose_name='cordoned by an operator')),
                ('card_count', models.IntegerField(default=0, verbose_name='GPUs')),
                ('cards_installed', models.IntegerField(default=0, verbose_name='installed GPUs')),
                ('maintenance', models.JSONField(blank=True, default=tuple, verbose_name='in maintenance')),
                ('allocatable', models.JSONField(default=dict, verbose_name='allocatable')),
                ('requested', models.JSONField(default=dict, verbose_name='requested')),
                ('pods', models.IntegerField(default=0, verbose_name='pods')),
                ('gpu_milli_used', models.IntegerField(default=0, verbose_name='GPU thousandths in use')),
                ('updated_at', models.DateTimeField(verbose_name='reported')),
                ('changed_revision', models.BigIntegerField(default=0, verbose_name='changed at revision')),
                ('sampled_revision', models.BigIntegerField(default=0, verbose_name='sampled at revision')),
                ('sample_due_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='sample expires at')),
                ('doubts', models.JSONField(blank=True, default=tuple, verbose_name='facts contradicted by the kubelet')),
                ('gone', models.BooleanField(default=False, verbose_name='deleted')),
            ],
            options={
                'verbose_name': 'node',
                'verbose_name_plural': 'nodes',
                'ordering': ['cluster_id', 'name'],
            },
        ),
        migrations.CreateModel(
            name='Sync',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('resource', models.CharField(max_length=120, verbose_name='resource')),
                ('required', models.BooleanField(default=True, verbose_name='required')),
                ('epoch', models.BigIntegerField(verbose_name='informer epoch')),
                ('synced_at', models.DateTimeField(null=True, verbose_name='last full list')),
                ('alive_at', models.DateTimeField(null=True, verbose_name='last event')),
                ('objects_count', models.IntegerField(default=0, verbose_name='objects')),
                ('relists', models.IntegerField(default=0, verbose_name='lists')),
                ('failures', models.IntegerField(default=0, verbose_name='failures in a row')),
                ('reason', models.CharField(blank=True, max_length=500, verbose_name='last failure')),
                ('quarantined', models.JSONField(default=tuple, verbose_name='unreadable objects')),
            ],
            options={
                'verbose_name': 'sync',
                'verbose_name_plural': 'syncs',
            },
        ),
        migrations.CreateModel(
            name='Connection',
            fields=[
                ('cluster', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='connection', serialize=False, to='inventory.cluster')),
                ('sealed_kubeconfig', models.TextField(blank=True, editable=False)),
                ('server', models.CharField(blank=True, max_length=300, verbose_name='API server')),
                ('cluster_uid', models.CharField(blank=True, max_length=64, verbose_name='uid of the cluster')),
                ('installation', models.UUIDField(default=uuid.uuid4, editable=False, verbose_name='installation')),
                ('enrolled_namespaces', models.JSONField(blank=True, default=list, verbose_name='namespaces for submissions')),
                ('read_pull_secrets', models.BooleanField(default=False, verbose_name='pull secrets are read')),
                ('failure', models.CharField(blank=True, max_length=500, verbose_name='informer failure')),
                ('shadow_of', models.CharField(blank=True, max_length=63, verbose_name='scheduler compared in shadow mode')),
                ('shadow_dropped', models.BigIntegerField(default=0, editable=False, verbose_name='pods not compared')),
                ('facts_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='data as of')),
                ('stale_since', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='stale since')),
                ('stale_reason', models.CharField(blank=True, editable=False, max_length=500, verbose_name='reason for stale data')),
                ('follower_id', models.CharField(blank=True, max_length=120, verbose_name='informer')),
                ('follower_until', models.DateTimeField(blank=True, null=True, verbose_name='informer lease ends')),
                ('follower_epoch', models.BigIntegerField(default=0, verbose_name='informer epoch')),
                ('sealed_discovery_kubeconfig', models.TextField(blank=True, editable=False)),
                ('discovery', models.JSONField(editable=False, null=True, verbose_name='discovery')),
                ('discoverer_id', models.CharField(blank=True, editable=False, max_length=120)),
                ('discoverer_until', models.DateTimeField(blank=True, editable=False, null=True)),
                ('discoverer_epoch', models.BigIntegerField(default=0, editable=False)),
            ],
            options={
                'verbose_name': 'connection',
                'verbose_name_plural': 'connections',
            },
        ),
        migrations.AddField(
            model_name='collector',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='collectors', to='inventory.cluster', verbose_name='cluster'),
        ),
        migrations.AddField(
            model_name='imageindex',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='images', to='inventory.cluster', verbose_name='cluster'),
        ),
        migrations.CreateModel(
            name='NodeFacts',
            fields=[
                ('node', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='facts', serialize=False, to='inventory.node')),
                ('base', models.JSONField()),
                ('known', models.JSONField()),
                ('reported', models.JSONField(null=True)),
                ('digest', models.CharField(blank=True, max_length=64)),
                ('usage', models.JSONField(null=True)),
                ('usage_taken', models.BooleanField(default=True)),
                ('pinned', models.JSONField(null=True)),
                ('quarantined', models.JSONField(default=tuple)),
                ('overrides', models.JSONField(default=tuple)),
                ('claims', models.JSONField(default=dict)),
                ('collected', models.JSONField(default=tuple)),
                ('agent', models.CharField(blank=True, max_length=100, verbose_name='agent')),
                ('instance', models.CharField(blank=True, max_length=64)),
                ('started_at', models.DateTimeField(null=True)),
                ('sequence', models.BigIntegerField(default=0)),
                ('reported_at', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name': 'node facts',
                'verbose_name_plural': 'node facts',
            },
        ),
        migrations.AddField(
            model_name='node',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='nodes', to='inventory.cluster', verbose_name='cluster'),
        ),
        migrations.AddField(
            model_name='sync',
            name='cluster',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='syncs', to='inventory.cluster', verbose_name='cluster'),
        ),
        migrations.AddConstraint(
            model_name='collector',
            constraint=models.UniqueConstraint(fields=('cluster', 'name'), name='inventory_collector_name'),
        ),
        migrations.AddIndex(
            model_name='imageindex',
            index=models.Index(condition=models.Q(('wanted', True)), fields=['cluster', 'not_before'], name='inventory_image_due'),
        ),
        migrations.AddConstraint(
            model_name='imageindex',
            constraint=models.UniqueConstraint(fields=('cluster', 'reference'), name='inventory_image_once'),
        ),
        migrations.AddIndex(
            model_name='node',
            index=models.Index(fields=['cluster', 'sample_due_at'], name='inventory_node_sample_due'),
        ),
        migrations.AddConstraint(
            model_name='node',
            constraint=models.UniqueConstraint(fields=('cluster', 'name'), name='inventory_node_name'),
        ),
        migrations.AddConstraint(
            model_name='sync',
            constraint=models.UniqueConstraint(fields=('cluster', 'resource'), name='inventory_sync_once'),
        ),
    ]
