//! Volume controllers: a PersistentVolumeClaim is bound to an existing matching volume, or to a new one if the member
//! provisions storage.

use crate::member::context::{FIELD_MANAGER, create_params};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::error::{Error, Result};

use super::context::MemberContext;
use super::informer::Object;
use super::resources::whole_value;
use super::store::{Key, StoreObject};
use super::workload::{new_change_queue, spawn_controller};

/// Name of the default storage class.
const DEFAULT_STORAGE_CLASS: &str = "standard";
const PROVISIONER: &str = "sim.crowsnest.io/volume";

pub fn start(context: &Arc<MemberContext>) {
    let claims = new_change_queue(&context.claims);
    let queue = claims.clone();
    let claim_store = Arc::downgrade(&context.claims);
    context.volumes.on_change(move |_, new| {
        if let (Some(_), Some(claims)) = (new, claim_store.upgrade()) {
            for claim in claims.all().iter().filter(|claim| !is_bound(claim)) {
                queue.add(claim.key());
            }
        }
    });
    spawn_controller(context, "persistentvolume-binder", claims, 4, |context, key| async move {
        bind(&context, &key).await
    });
    let volumes = new_change_queue(&context.volumes);
    let (queue, volume_store) = (volumes.clone(), Arc::downgrade(&context.volumes));
    context.claims.on_change(move |old, new| {
        if let (Some(claim), None, Some(volumes)) = (old, new, volume_store.upgrade())
            && let Some(name) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref())
            && volumes.get(&Key::new("", name)).is_some()
        {
            queue.add(Key::new("", name));
        }
    });
    spawn_controller(
        context,
        "persistentvolume",
        volumes,
        2,
        |context, key| async move { reclaim(&context, &key).await },
    );
}

/// Creates the default storage class in members with storage.
pub async fn write_storage_class(context: &MemberContext) -> Result<()> {
    if !context.features.storage {
        return Ok(());
    }
    let class = json!({
        "metadata": {"name": DEFAULT_STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
    });
    let class: StorageClass =
        serde_json::from_value(class).map_err(|source| Error::Encode { object: "storage class", source })?;
    let api: Api<StorageClass> = Api::all(context.client.clone());
    match api.create(&create_params(), &class).await.map_err(Error::api("create the storage class")) {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

async fn bind(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(claim) = context.claims.get(key) else { return Ok(None) };
    if is_bound(&claim) || claim.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let class = spec.storage_class_name.clone();
    let existing = context.volumes.all().into_iter().find(|volume| matches_claim(volume, &claim));
    let (name, capacity) = match (existing, class.as_deref()) {
        (Some(volume), _) => {
            let patch = json!({"spec": {"claimRef": claim_reference(&claim)}});
            patch_volume(context, &volume.key().name, None, &patch).await?;
            let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.clone()).unwrap_or_default();
            (volume.key().name.to_string(), json!(capacity))
        }
        (None, None | Some(DEFAULT_STORAGE_CLASS)) if context.features.storage => {
            let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone()).unwrap_or_default();
            let name = format!("pvc-{}", claim.uid());
            provision(context, &name, &claim, &requests).await?;
            (name, json!(requests))
        }
        _ => {
            set_phase(context, &claim, "Pending").await?;
            return Ok(None);
        }
    };
    patch_volume(context, &name, Some("status"), &json!({"status": {"phase": "Bound"}})).await?;
    let mut patch = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}},
        "spec": {"volumeName": name},
    });
    if class.is_none() && context.features.storage {
        patch["spec"]["storageClassName"] = json!(DEFAULT_STORAGE_CLASS);
    }
    context.patch(&context.claims, key, None, &patch).await?;
    let status = json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": capacity}});
    context.patch(&context.claims, key, Some("status"), &status).await?;
    Ok(None)
}

async fn set_phase(context: &MemberContext, claim: &Object<PersistentVolumeClaim>, phase: &str) -> Result<()> {
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase) {
        context.patch(&context.claims, &claim.key(), Some("status"), &json!({"status": {"phase": phase}})).await?;
    }
    Ok(())
}

/// True if a volume can be bound to a claim.
fn matches_claim(volume: &PersistentVolume, claim: &Object<PersistentVolumeClaim>) -> bool {
    let (Some(volume_spec), Some(claim_spec)) = (&volume.spec, &claim.spec) else { return false };
    let key = claim.key();
    if let Some(reference) = &volume_spec.claim_ref {
        let is_for_claim =
            reference.name.as_deref() == Some(&*key.name) && reference.namespace.as_deref() == Some(&*key.namespace);
        return is_for_claim && reference.uid.as_deref().is_none_or(|uid| uid == claim.uid());
    }
    if let Some(name) = claim_spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        return volume.metadata.name.as_deref() == Some(name);
    }
    let size = |list: Option<&std::collections::BTreeMap<String, _>>| {
        list.and_then(|list| list.get("storage")).map_or(0, whole_value)
    };
    let modes = |modes: &Option<Vec<String>>| modes.clone().unwrap_or_default();
    volume_spec.storage_class_name.as_deref().unwrap_or_default()
        == claim_spec.storage_class_name.as_deref().unwrap_or_default()
        && modes(&claim_spec.access_modes).iter().all(|mode| modes(&volume_spec.access_modes).contains(mode))
        && size(volume_spec.capacity.as_ref())
            >= size(claim_spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()))
}

fn claim_reference(claim: &Object<PersistentVolumeClaim>) -> Value {
    let key = claim.key();
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": &*key.namespace, "name": &*key.name, "uid": claim.uid()})
}

async fn provision(
    context: &MemberContext,
    name: &str,
    claim: &Object<PersistentVolumeClaim>,
    requests: &std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
) -> Result<()> {
    let spec = claim.spec.clone().unwrap_or_default();
    let volume = json!({
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "capacity": requests, "accessModes": spec.access_modes, "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": DEFAULT_STORAGE_CLASS, "volumeMode": spec.volume_mode, "claimRef": claim_reference(claim),
            "hostPath": {"path": format!("/var/lib/volumes/{name}")},
        },
    });
    let volume: PersistentVolume =
        serde_json::from_value(volume).map_err(|source| Error::Encode { object: "volume", source })?;
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    match api.create(&create_params(), &volume).await.map_err(Error::api(format!("create volume {name}"))) {
        Ok(created) => {
            context.volumes.apply(created.into());
            Ok(())
        }
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

async fn patch_volume(context: &MemberContext, name: &str, subresource: Option<&str>, patch: &Value) -> Result<()> {
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let params = PatchParams::apply(FIELD_MANAGER);
    let patched = match subresource {
        Some(subresource) => api.patch_subresource(subresource, name, &params, &Patch::Merge(patch)).await,
        None => api.patch(name, &params, &Patch::Merge(patch)).await,
    };
    context.volumes.apply(patched.map_err(Error::api(format!("patch volume {name}")))?.into());
    Ok(())
}

/// Deletes or releases a volume whose claim was deleted; sets a new one to Available.
async fn reclaim(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(volume) = context.volumes.get(key) else { return Ok(None) };
    let spec = volume.spec.clone().unwrap_or_default();
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let Some(reference) = spec.claim_ref else {
        if phase != "Available" {
            patch_volume(context, &key.name, Some("status"), &json!({"status": {"phase": "Available"}})).await?;
        }
        return Ok(None);
    };
    let claim =
        Key::new(reference.namespace.as_deref().unwrap_or_default(), reference.name.as_deref().unwrap_or_default());
    let has_claim =
        context.claims.get(&claim).is_some_and(|claim| reference.uid.as_deref().is_none_or(|uid| uid == claim.uid()));
    if has_claim || reference.uid.is_none() {
        return Ok(None);
    }
    // The API server does not delete a volume that is bound.
    if phase != "Released" {
        patch_volume(context, &key.name, Some("status"), &json!({"status": {"phase": "Released"}})).await?;
    }
    if spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete") {
        let api: Api<PersistentVolume> = Api::all(context.client.clone());
        match api.delete(&key.name, &DeleteParams::default()).await.map_err(Error::api(format!("delete volume {key}")))
        {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(None)
}
