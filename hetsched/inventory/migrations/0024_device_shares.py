"""Convert device capacities, allocated devices and the nodes of claims to the forms that also describe shares."""

from django.db import migrations


def convert(devices):
    """Return the devices and claims of a cluster's definitions, each in the new form."""
    return {
        **devices,
        "devices": [_device(device) for device in devices.get("devices", ())],
        "claims": {key: _claim(claim) for key, claim in devices.get("claims", {}).items()},
    }


def _device(device):
    prefix = f"{device['id']['driver']}/"
    capacity = {name.removeprefix(prefix): {"value": value} for name, value in device.get("capacity", {}).items()}
    return {**device, "capacity": capacity}


def _claim(claim):
    found = {key: value for key, value in claim.items() if key != "node"}
    if claim.get("allocated") is not None:
        found["allocated"] = [{"device": device} for device in claim["allocated"]]
    if claim.get("node"):
        field = {"key": "metadata.name", "operator": "In", "values": [claim["node"]]}
        found["node_terms"] = [{"fields": [field]}]
    return found


def convert_all(apps, schema_editor):
    clusters = apps.get_model("inventory", "Cluster").objects
    for cluster in clusters.only("id", "definitions").iterator(chunk_size=10):
        devices = (cluster.definitions or {}).get("devices")
        if devices and (devices.get("devices") or devices.get("claims")):
            clusters.filter(pk=cluster.pk).update(definitions={**cluster.definitions, "devices": convert(devices)})


class Migration(migrations.Migration):

    dependencies = [
        ("inventory", "0023_event_and_effect_revisions"),
    ]

    operations = [
        migrations.RunPython(convert_all, migrations.RunPython.noop),
    ]
