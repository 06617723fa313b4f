//! Volume controllers: claims are bound to an existing matching volume, or to a new one if the member provisions
//! storage.

use crate::member::world::{MANAGER, creation};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::error::{Error, Result};

use super::informer::Object;
use super::resources::whole;
use super::store::{Key, Stored};
use super::workload::{keys_of, spawn};
use super::world::World;

/// Name of the default storage class.
const CLASS: &str = "standard";
const PROVISIONER: &str = "sim.crowsnest.io/volume";

pub fn start(world: &Arc<World>) {
    let claims = keys_of(&world.claims);
    let wanted = claims.clone();
    let pending = Arc::downgrade(&world.claims);
    world.volumes.on_change(move |_, new| {
        if let (Some(_), Some(claims)) = (new, pending.upgrade()) {
            for claim in claims.all().iter().filter(|claim| !is_bound(claim)) {
                wanted.add(claim.key());
            }
        }
    });
    spawn(world, "persistentvolume-binder", claims, 4, |world, key| async move { bind(&world, &key).await });
    let volumes = keys_of(&world.volumes);
    let (wanted, all) = (volumes.clone(), Arc::downgrade(&world.volumes));
    world.claims.on_change(move |old, new| {
        if let (Some(claim), None, Some(all)) = (old, new, all.upgrade())
            && let Some(name) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref())
            && all.get(&Key::new("", name)).is_some()
        {
            wanted.add(Key::new("", name));
        }
    });
    spawn(world, "persistentvolume", volumes, 2, |world, key| async move { reclaim(&world, &key).await });
}

/// Creates the default storage class in members with storage.
pub async fn write_storage_class(world: &World) -> Result<()> {
    if !world.features.storage {
        return Ok(());
    }
    let class = json!({
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
    });
    let class: StorageClass =
        serde_json::from_value(class).map_err(|source| Error::Encode { what: "storage class", source })?;
    let api: Api<StorageClass> = Api::all(world.client.clone());
    match api.create(&creation(), &class).await.map_err(Error::api("create the storage class")) {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

async fn bind(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(claim) = world.claims.get(key) else { return Ok(None) };
    if is_bound(&claim) || claim.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let class = spec.storage_class_name.clone();
    let existing = world.volumes.all().into_iter().find(|volume| fits(volume, &claim));
    let (name, capacity) = match (existing, class.as_deref()) {
        (Some(volume), _) => {
            let patch = json!({"spec": {"claimRef": reference(&claim)}});
            patch_volume(world, &volume.key().name, None, &patch).await?;
            let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.clone()).unwrap_or_default();
            (volume.key().name.to_string(), json!(capacity))
        }
        (None, None | Some(CLASS)) if world.features.storage => {
            let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone()).unwrap_or_default();
            let name = format!("pvc-{}", claim.uid());
            provision(world, &name, &claim, &requests).await?;
            (name, json!(requests))
        }
        _ => {
            phase(world, &claim, "Pending").await?;
            return Ok(None);
        }
    };
    patch_volume(world, &name, Some("status"), &json!({"status": {"phase": "Bound"}})).await?;
    let mut patch = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}},
        "spec": {"volumeName": name},
    });
    if class.is_none() && world.features.storage {
        patch["spec"]["storageClassName"] = json!(CLASS);
    }
    world.patch(&world.claims, key, None, &patch).await?;
    let status = json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": capacity}});
    world.patch(&world.claims, key, Some("status"), &status).await?;
    Ok(None)
}

async fn phase(world: &World, claim: &Object<PersistentVolumeClaim>, phase: &str) -> Result<()> {
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase) {
        world.patch(&world.claims, &claim.key(), Some("status"), &json!({"status": {"phase": phase}})).await?;
    }
    Ok(())
}

fn fits(volume: &PersistentVolume, claim: &Object<PersistentVolumeClaim>) -> bool {
    let (Some(has), Some(wants)) = (&volume.spec, &claim.spec) else { return false };
    let key = claim.key();
    if let Some(reference) = &has.claim_ref {
        let mine =
            reference.name.as_deref() == Some(&*key.name) && reference.namespace.as_deref() == Some(&*key.namespace);
        return mine && reference.uid.as_deref().is_none_or(|uid| uid == claim.uid());
    }
    if let Some(name) = wants.volume_name.as_deref().filter(|name| !name.is_empty()) {
        return volume.metadata.name.as_deref() == Some(name);
    }
    let size = |list: Option<&std::collections::BTreeMap<String, _>>| {
        list.and_then(|list| list.get("storage")).map_or(0, whole)
    };
    let modes = |modes: &Option<Vec<String>>| modes.clone().unwrap_or_default();
    has.storage_class_name.as_deref().unwrap_or_default() == wants.storage_class_name.as_deref().unwrap_or_default()
        && modes(&wants.access_modes).iter().all(|mode| modes(&has.access_modes).contains(mode))
        && size(has.capacity.as_ref())
            >= size(wants.resources.as_ref().and_then(|resources| resources.requests.as_ref()))
}

fn reference(claim: &Object<PersistentVolumeClaim>) -> Value {
    let key = claim.key();
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": &*key.namespace, "name": &*key.name, "uid": claim.uid()})
}

async fn provision(
    world: &World,
    name: &str,
    claim: &Object<PersistentVolumeClaim>,
    requests: &std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
) -> Result<()> {
    let spec = claim.spec.clone().unwrap_or_default();
    let volume = json!({
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": requests, "accessModes": spec.access_modes, "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": CLASS, "volumeMode": spec.volume_mode, "claimRef": reference(claim),
            "hostPath": {"path": format!("/var/lib/volumes/{name}")},
        },
    });
    let volume: PersistentVolume =
        serde_json::from_value(volume).map_err(|source| Error::Encode { what: "volume", source })?;
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    match api.create(&creation(), &volume).await.map_err(Error::api(format!("create volume {name}"))) {
        Ok(created) => {
            world.volumes.apply(created.into());
            Ok(())
        }
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

async fn patch_volume(world: &World, name: &str, subresource: Option<&str>, patch: &Value) -> Result<()> {
    let api: Api<PersistentVolume> = Api::all(world.client.clone());
    let params = PatchParams::apply(MANAGER);
    let patched = match subresource {
        Some(subresource) => api.patch_subresource(subresource, name, &params, &Patch::Merge(patch)).await,
        None => api.patch(name, &params, &Patch::Merge(patch)).await,
    };
    world.volumes.apply(patched.map_err(Error::api(format!("patch volume {name}")))?.into());
    Ok(())
}

/// Deletes or releases a volume whose claim was deleted; sets a new one to Available.
async fn reclaim(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(volume) = world.volumes.get(key) else { return Ok(None) };
    let spec = volume.spec.clone().unwrap_or_default();
    let shown = volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let Some(reference) = spec.claim_ref else {
        if shown != "Available" {
            patch_volume(world, &key.name, Some("status"), &json!({"status": {"phase": "Available"}})).await?;
        }
        return Ok(None);
    };
    let claim =
        Key::new(reference.namespace.as_deref().unwrap_or_default(), reference.name.as_deref().unwrap_or_default());
    let held =
        world.claims.get(&claim).is_some_and(|claim| reference.uid.as_deref().is_none_or(|uid| uid == claim.uid()));
    if held || reference.uid.is_none() {
        return Ok(None);
    }
    // A bound volume is protected from removal.
    if shown != "Released" {
        patch_volume(world, &key.name, Some("status"), &json!({"status": {"phase": "Released"}})).await?;
    }
    if spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") {
        let api: Api<PersistentVolume> = Api::all(world.client.clone());
        match api.delete(&key.name, &DeleteParams::default()).await.map_err(Error::api(format!("delete volume {key}")))
        {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}
