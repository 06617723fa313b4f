//! Migrates stored objects from the earlier names of their kinds to those of this version.
//!
//! The earlier names were those of the public kinds, so `kubectl get clusters` was ambiguous. [`copy`] refuses changes under the earlier
//! names, copies each object, and marks the copy as verified when it was read back unchanged. It can be interrupted at any
//! time and run again. [`remove`] deletes the earlier definitions once all copies are verified.

mod plan;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_api::constants::annotation::{MIGRATION_UNVERIFIED, MIGRATION_VERIFIED};
use crowsnest_api::names::LEASES;
use crowsnest_api::storage;
use http::{Method, Request};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::{Value, json};

use crate::installation::{delete, read};
use crate::migrate::plan::{ApiCollection, name};
use crate::migrate::{list, send_request, write_status};
use crate::{SYSTEM_NAMESPACE, apply_all};
use plan::{
    MIGRATION_POLICY, ObjectCopy, RENAMED_KINDS, RenamedKind, is_unchanged_copy, is_unverified, migration_policy,
    plan_copies, reason_to_keep,
};

/// Time within which the control plane has to apply the policy, and to delete a definition.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const MERGE_PATCH: &str = "application/merge-patch+json";

/// The definitions of the internal group.
pub fn definitions() -> Vec<Value> {
    let is_internal = |definition: &Value| definition["spec"]["group"] == storage::GROUP;
    crowsnest_api::crd::crds(None).into_iter().filter(is_internal).collect()
}

fn definition(name: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}})
}

/// Kinds whose earlier definition exists, with that definition.
async fn read_earlier_definitions(client: &kube::Client) -> anyhow::Result<Vec<(&'static RenamedKind, Value)>> {
    let mut found = Vec::new();
    for kind in &RENAMED_KINDS {
        found.extend(read(client, &definition(&kind.definition())).await?.map(|definition| (kind, definition)));
    }
    Ok(found)
}

/// Names of the earlier definitions that exist.
pub async fn earlier_definition_names(client: &kube::Client) -> anyhow::Result<Vec<String>> {
    Ok(read_earlier_definitions(client).await?.into_iter().map(|(kind, _)| kind.definition()).collect())
}

/// Copies the objects stored under earlier names. The CRDs of this version are applied first; their webhooks must not be
/// registered yet.
pub async fn copy(client: &kube::Client, out: &mut impl Write) -> anyhow::Result<()> {
    let pending: Vec<_> = read_earlier_definitions(client)
        .await?
        .into_iter()
        .filter(|(_, definition)| !is_verified(definition))
        .collect();
    if pending.is_empty() {
        return Ok(());
    }
    apply_all(client, &definitions()).await?;
    apply_all(client, &migration_policy()).await?;
    for (kind, _) in &pending {
        wait_for_policy(client, kind.old).await?;
        copy_kind(client, kind, out).await?;
        let patch = json!({"metadata": {"annotations": {MIGRATION_VERIFIED: "true"}}});
        let path = crate::api_path(&definition(&kind.definition()))?;
        send_request(client, Method::PATCH, &path, MERGE_PATCH, &patch).await?;
    }
    Ok(())
}

fn is_verified(definition: &Value) -> bool {
    definition["metadata"]["annotations"][MIGRATION_VERIFIED].is_string()
}

/// Waits until the policy refuses changes of the objects. Returns at once if there are none.
async fn wait_for_policy(client: &kube::Client, collection: ApiCollection<'_>) -> anyhow::Result<()> {
    let probing = async {
        loop {
            let Some(objects) = list(client, collection).await? else { return Ok(()) };
            let is_not_terminating = |object: &&Value| !object["metadata"]["deletionTimestamp"].is_string();
            let Some(probe) = objects.iter().find(is_not_terminating).or(objects.first()) else { return Ok(()) };
            let path = format!("{}/{}?dryRun=All", collection.path(), name(probe));
            match client.request::<Value>(Request::delete(&path).body(Vec::new())?).await {
                Err(kube::Error::Api(refused)) if refused.message.contains(MIGRATION_POLICY) => return Ok(()),
                Ok(_) => {}
                Err(kube::Error::Api(refused)) if refused.code == 404 => {}
                Err(error) => return Err(error).with_context(|| format!("DELETE {path}")),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let context = || format!("{} can still be changed: the policy {MIGRATION_POLICY} has no effect", collection.plural);
    tokio::time::timeout(MIGRATION_TIMEOUT, probing).await.with_context(context)?
}

async fn copy_kind(client: &kube::Client, kind: &RenamedKind, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(old) = list(client, kind.old).await? else {
        bail!("{} is not served, so its objects cannot be copied", kind.definition());
    };
    let new = list(client, kind.new).await?.unwrap_or_default();
    for copy in plan_copies(&old, &new, kind.new) {
        let name = name(&copy.object);
        write(client, kind.new, &copy).await.with_context(|| format!("cannot copy {} {name}", kind.new.plural))?;
        writeln!(out, "{}/{name} copied to {}", kind.old.plural, kind.new.plural)?;
    }
    let new = list(client, kind.new).await?.unwrap_or_default();
    let copied = |object: &Value| new.iter().any(|copy| name(copy) == name(object) && !is_unverified(copy));
    if let Some(missing) = old.iter().find(|object| !copied(object)) {
        bail!("{} {} does not exist after it was copied", kind.new.plural, name(missing));
    }
    Ok(())
}

/// Writes a copy, reads it back, and marks it as verified.
async fn write(client: &kube::Client, collection: ApiCollection<'_>, copy: &ObjectCopy) -> anyhow::Result<()> {
    let path = format!("{}/{}", collection.path(), name(&copy.object));
    let response = match copy.exists {
        false => send_request(client, Method::POST, &collection.path(), "application/json", &copy.object).await?,
        true => send_request(client, Method::PUT, &path, "application/json", &copy.object).await?,
    };
    write_status(client, &path, &copy.object, &response).await?;
    let found: Value = client.request(Request::get(&path).body(Vec::new())?).await?;
    if !is_unchanged_copy(copy, &found, collection) {
        bail!("the copy differs from the object: {found}");
    }
    let mut verified = json!({"metadata": {"annotations": {MIGRATION_UNVERIFIED: null}}});
    if copy.managed_fields.is_array() {
        // Set last: a write makes its field manager the owner of the fields it changes.
        verified["metadata"]["managedFields"] = copy.managed_fields.clone();
    }
    if copy.is_terminating {
        // The finalizers keep the copy until the controllers have processed its deletion. A verified copy is not read again.
        send_request(client, Method::DELETE, &path, "application/json", &json!({})).await?;
    }
    send_request(client, Method::PATCH, &path, MERGE_PATCH, &verified).await.map(drop)
}

/// Removes the earlier definitions if the Leases of the controllers show that no other process watches them.
pub async fn remove_unused(client: &kube::Client, out: &mut impl Write) -> anyhow::Result<()> {
    let names = earlier_definition_names(client).await?;
    if names.is_empty() {
        // An interrupted removal may have left the policy.
        return remove(client, out).await;
    }
    let api: Api<Lease> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let mut leases = Vec::new();
    for name in LEASES {
        leases.push((
            name,
            api.get_opt(name).await.with_context(|| format!("cannot read Lease {SYSTEM_NAMESPACE}/{name}"))?,
        ));
    }
    match reason_to_keep(&leases, Timestamp::now()) {
        None => remove(client, out).await,
        Some(reason) => {
            let names = names.join(", ");
            writeln!(out, "{names} kept: {reason}; replace all replicas, then run \"crowsnest install\" again")?;
            Ok(())
        }
    }
}

/// Removes the earlier definitions whose objects were all copied, and the policy that protected them.
pub async fn remove(client: &kube::Client, out: &mut impl Write) -> anyhow::Result<()> {
    for (kind, found) in read_earlier_definitions(client).await? {
        if !is_verified(&found) {
            bail!("{} has objects whose copies were not verified", kind.definition());
        }
        release_finalizers(client, kind).await?;
        remove_definition(client, &kind.definition()).await?;
        writeln!(out, "customresourcedefinition/{} deleted: its objects are {}", kind.definition(), kind.new.plural)?;
    }
    for manifest in migration_policy().iter().rev() {
        delete(client, manifest).await?;
    }
    Ok(())
}

/// Removes the finalizers of copied objects: controllers reconcile the copies.
async fn release_finalizers(client: &kube::Client, kind: &RenamedKind) -> anyhow::Result<()> {
    for object in list(client, kind.old).await?.unwrap_or_default() {
        if object["metadata"]["finalizers"].is_array() {
            let path = format!("{}/{}", kind.old.path(), name(&object));
            send_request(client, Method::PATCH, &path, MERGE_PATCH, &json!({"metadata": {"finalizers": null}})).await?;
        }
    }
    Ok(())
}

/// Deletes a definition and waits until it does not exist.
async fn remove_definition(client: &kube::Client, name: &str) -> anyhow::Result<()> {
    let definition = definition(name);
    delete(client, &definition).await?;
    let wait_for_deletion = async {
        while read(client, &definition).await?.is_some() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(MIGRATION_TIMEOUT, wait_for_deletion)
        .await
        .with_context(|| format!("{name} is still being deleted"))?
}

/// Objects of the internal kinds at the end of an uninstallation.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Earlier definitions that have no objects or whose objects were all copied, definitions of this version that have no
    /// objects, and the policy, in the order of their deletion.
    pub removable: Vec<Value>,
    /// Names of definitions that are kept, and the number of their objects.
    pub kept: Vec<(String, usize)>,
}

/// Reads the definitions and objects of the internal kinds that remain after all Clusters were removed; with `dry_run`, those that would
/// remain.
pub async fn read_leftovers(client: &kube::Client, dry_run: bool) -> anyhow::Result<Leftovers> {
    let mut leftovers = Leftovers::default();
    let copied: Vec<Value> =
        read_earlier_definitions(client).await?.into_iter().map(|(_, found)| found).filter(is_verified).collect();
    let is_copied = |manifest: &Value| copied.iter().any(|found| name(found) == name(manifest));
    for collection in RENAMED_KINDS.iter().map(|kind| kind.old).chain(RENAMED_KINDS.iter().map(|kind| kind.new)) {
        let manifest = definition(&format!("{}.{}", collection.plural, storage::GROUP));
        if read(client, &manifest).await?.is_none() {
            continue;
        }
        let is_removed =
            dry_run && [storage::CLUSTERS.plural, storage::CLUSTERS.stored_plural].contains(&collection.plural);
        let objects = if is_removed { 0 } else { list(client, collection).await?.unwrap_or_default().len() };
        match objects == 0 || is_copied(&manifest) {
            true => leftovers.removable.push(manifest),
            false => leftovers.kept.push((name(&manifest).to_owned(), objects)),
        }
    }
    for manifest in migration_policy().into_iter().rev() {
        if read(client, &manifest).await?.is_some() {
            leftovers.removable.push(manifest);
        }
    }
    Ok(leftovers)
}

/// Removes the finalizers of all objects whose copies were verified, so that their definitions can be deleted.
pub async fn release_copied_objects(client: &kube::Client) -> anyhow::Result<()> {
    for (kind, _) in read_earlier_definitions(client).await?.iter().filter(|(_, found)| is_verified(found)) {
        release_finalizers(client, kind).await?;
    }
    Ok(())
}
