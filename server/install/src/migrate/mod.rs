//! `crowsnest migrate`: migrates a control plane from Karmada to Crowsnest in place, and back. Karmada's aggregated API servers store
//! Clusters and ResourceRegistries in etcd under their own keys; these are read from Karmada's API and written to Crowsnest's stored
//! kinds. All other objects are in the control plane under the same names already. Member clusters are not contacted. Annotations
//! record the original UIDs, and the aggregated API server serves the objects with them, so that owner references stay valid.
//!
//! Karmada's registrations (APIServices, webhook configurations, admission policies, and conversion webhooks of CRDs) are saved in a
//! ConfigMap, from which `crowsnest migrate --back` restores them. Both directions can be repeated at any time.

pub(crate) mod plan;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_api::storage::{self, CLUSTERS, RESOURCE_REGISTRIES, StoredKind};
use http::{Method, Request, header};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

use crate::SYSTEM_NAMESPACE;
use crate::installation::{self, is_admission_manifest};
use plan::{ApiCollection, Direction, Step, migrated_uid, name, plan};

/// Name of the ConfigMap with Karmada's registrations.
const REGISTRATIONS_CONFIG_MAP: &str = "crowsnest-before-migration";
const REGISTRATIONS_KEY: &str = "objects.json";
/// Time within which Karmada's API server must serve requests again.
const KARMADA_API_TIMEOUT: Duration = Duration::from_secs(120);

/// API version of the kinds in which Crowsnest stores objects.
pub(crate) const STORAGE_API_VERSION: &str = "storage.crowsnest.io/v1alpha1";

/// Karmada's and Crowsnest's collections of the kinds that the two store in different API groups.
const KINDS: [(ApiCollection<'_>, ApiCollection<'_>); 2] = [
    (karmada_collection("cluster.karmada.io/v1alpha1", &CLUSTERS), crowsnest_collection(&CLUSTERS)),
    (
        karmada_collection("search.karmada.io/v1alpha1", &RESOURCE_REGISTRIES),
        crowsnest_collection(&RESOURCE_REGISTRIES),
    ),
];

const fn karmada_collection(api_version: &'static str, kind: &'static StoredKind) -> ApiCollection<'static> {
    ApiCollection { api_version, plural: kind.plural, kind: kind.kind }
}

pub(crate) const fn crowsnest_collection(kind: &'static StoredKind) -> ApiCollection<'static> {
    ApiCollection { api_version: STORAGE_API_VERSION, plural: kind.stored_plural, kind: kind.stored_kind }
}

/// Copies the objects that Karmada's API servers store. They must be running. Writes one line per object to `out`.
pub async fn migrate_from_karmada(client: &kube::Client, dry_run: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let foreign = installation::foreign_api_services(client).await?;
    if foreign.is_empty() {
        bail!("cannot migrate: no other server serves cluster.karmada.io in this control plane");
    }
    for (name, server) in &foreign {
        writeln!(out, "{name} is served by {server}")?;
    }
    if !dry_run {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}});
        crate::apply_all(client, &[namespace]).await?;
        save_registrations(client, &foreign).await?;
        crate::apply_all(client, &crate::stored_kind_migration::definitions()).await?;
    }
    for (karmada, crowsnest) in KINDS {
        if !foreign.iter().any(|(name, _)| name.ends_with(karmada.group())) {
            continue;
        }
        let source = list(client, karmada).await?.unwrap_or_default();
        let target = list(client, crowsnest).await?.unwrap_or_default();
        let steps = plan(&source, &target, crowsnest, Direction::FromKarmada);
        execute(client, (crowsnest, karmada.plural), &steps, dry_run, out).await?;
        writeln!(out, "{} of {} {} written", steps.len(), source.len(), karmada.plural)?;
    }
    writeln!(
        out,
        "next: stop Karmada's components, run `crowsnest install --take-over`, start `crowsnest serve`; `crowsnest migrate --back` undoes the migration"
    )?;
    Ok(())
}

/// Restores Karmada's registrations, and writes the objects changed since the migration to Karmada's API servers.
pub async fn migrate_to_karmada(client: &kube::Client, dry_run: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = maps
        .get_opt(REGISTRATIONS_CONFIG_MAP)
        .await
        .with_context(|| format!("cannot read ConfigMap {SYSTEM_NAMESPACE}/{REGISTRATIONS_CONFIG_MAP}"))?;
    let found = found.and_then(|map| map.data?.remove(REGISTRATIONS_KEY));
    let Some(text) = found else {
        bail!(
            "cannot restore Karmada's registrations: ConfigMap {SYSTEM_NAMESPACE}/{REGISTRATIONS_CONFIG_MAP} does not exist"
        )
    };
    let objects: Vec<Value> = serde_json::from_str(&text)
        .with_context(|| format!("cannot parse ConfigMap {SYSTEM_NAMESPACE}/{REGISTRATIONS_CONFIG_MAP}"))?;
    if let Some(unexpected) = objects.iter().find(|object| !is_karmada_registration(object)) {
        let (kind, name) = (unexpected["kind"].as_str().unwrap_or_default(), name(unexpected));
        bail!(
            "ConfigMap {SYSTEM_NAMESPACE}/{REGISTRATIONS_CONFIG_MAP} has a {kind} {name:?}, which Karmada does not register; nothing was restored"
        );
    }
    for object in &objects {
        if !dry_run {
            restore(client, object).await?;
        }
        let verb = if dry_run { "would be restored" } else { "restored" };
        writeln!(out, "{}/{} {verb}", object["kind"].as_str().unwrap_or_default().to_ascii_lowercase(), name(object))?;
    }
    if dry_run {
        return Ok(());
    }
    // No server would respond to the webhooks that Karmada did not register.
    let is_registered_by_karmada = |manifest: &Value| {
        objects.iter().any(|object| (&object["kind"], name(object)) == (&manifest["kind"], name(manifest)))
    };
    for manifest in crate::admission_manifests("https://localhost", "")
        .iter()
        .filter(|manifest| !is_registered_by_karmada(manifest))
    {
        installation::delete(client, manifest).await?;
    }
    let is_registered = |group: &str| objects.iter().any(|object| object["spec"]["group"] == group);
    for (karmada, crowsnest) in KINDS {
        if !is_registered(karmada.group()) {
            continue;
        }
        let source = list(client, crowsnest).await?.unwrap_or_default();
        let target = wait_for_karmada(client, karmada, &source).await?;
        let steps = plan(&source, &target, karmada, Direction::ToKarmada);
        execute(client, (karmada, karmada.plural), &steps, dry_run, out).await?;
        let deleted = steps.iter().filter(|step| matches!(step, Step::Delete(_))).count();
        let written = steps.len() - deleted;
        writeln!(out, "{written} of {} {} written, {deleted} deleted", source.len(), karmada.plural)?;
    }
    writeln!(
        out,
        "next: start the rest of Karmada's components; `crowsnest uninstall` removes Crowsnest's remaining objects"
    )?;
    Ok(())
}

/// Saves the current registrations, unless the ConfigMap exists: it has those from before the first migration.
async fn save_registrations(client: &kube::Client, foreign: &[(String, String)]) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    if maps.get_opt(REGISTRATIONS_CONFIG_MAP).await?.is_some() {
        return Ok(());
    }
    let service = |name: &str| json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}});
    let mut candidates: Vec<Value> = foreign.iter().map(|(name, _)| service(name)).collect();
    candidates.extend(crate::admission_manifests("https://localhost", "").into_iter().filter(is_admission_manifest));
    candidates.extend(
        crowsnest_api::crd::crds(None).into_iter().filter(|definition| definition["spec"]["group"] != storage::GROUP),
    );
    let mut objects = Vec::new();
    for manifest in &candidates {
        let Some(found) = installation::read(client, manifest).await? else { continue };
        let Some(part) = restorable_part(manifest, &found) else { continue };
        objects.push(part);
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": REGISTRATIONS_CONFIG_MAP, "namespace": SYSTEM_NAMESPACE},
        "data": {REGISTRATIONS_KEY: serde_json::to_string(&objects)?},
    });
    Ok(crate::apply_all(client, &[map]).await?)
}

/// The part of an object that is restored. For a CRD, it is only the conversion webhook, because the schemas are equal.
fn restorable_part(manifest: &Value, found: &Value) -> Option<Value> {
    let mut part = json!({"apiVersion": manifest["apiVersion"], "kind": manifest["kind"],
        "metadata": {"name": found["metadata"]["name"]}});
    for field in ["labels", "annotations"] {
        if let Some(value) = found["metadata"].get(field) {
            part["metadata"][field] = value.clone();
        }
    }
    if manifest["kind"] == "CustomResourceDefinition" {
        let conversion = found.pointer("/spec/conversion").filter(|conversion| conversion["strategy"] == "Webhook")?;
        part["metadata"] = json!({"name": found["metadata"]["name"]});
        part["spec"] = json!({"conversion": conversion});
        return Some(part);
    }
    for field in ["spec", "webhooks"] {
        if let Some(value) = found.get(field) {
            part[field] = value.clone();
        }
    }
    Some(part)
}

/// True if the object has a kind and name that Karmada registers, and only the fields that are copied. Otherwise a user
/// who can write the ConfigMap could make an administrator create arbitrary objects.
fn is_karmada_registration(object: &Value) -> bool {
    let is_one_of = |allowed: &[Value]| {
        let has_same_kind =
            |candidate: &Value| ["apiVersion", "kind"].iter().all(|field| candidate[*field] == object[*field]);
        allowed.iter().any(|candidate| has_same_kind(candidate) && name(candidate) == name(object))
    };
    let has_only_fields = |allowed: &[&str]| {
        let common_fields = ["apiVersion", "kind", "metadata"];
        object.as_object().is_some_and(|all| {
            all.keys().all(|key| common_fields.contains(&key.as_str()) || allowed.contains(&key.as_str()))
        })
    };
    match object["kind"].as_str().unwrap_or_default() {
        "APIService" => {
            let (group, version) = (object["spec"]["group"].as_str(), object["spec"]["version"].as_str());
            group.is_some_and(|group| KINDS.iter().any(|(karmada, _)| karmada.group() == group))
                && object["apiVersion"] == "apiregistration.k8s.io/v1"
                && group.zip(version).is_some_and(|(group, version)| name(object) == format!("{version}.{group}"))
                && has_only_fields(&["spec"])
        }
        "CustomResourceDefinition" => {
            let has_only_conversion =
                object["spec"].as_object().is_some_and(|spec| spec.keys().all(|key| key == "conversion"));
            is_one_of(&crowsnest_api::crd::crds(None)) && has_only_conversion && has_only_fields(&["spec"])
        }
        _ => {
            is_admission_manifest(object)
                && is_one_of(&crate::admission_manifests("https://localhost", ""))
                && has_only_fields(&["webhooks"])
        }
    }
}

async fn restore(client: &kube::Client, object: &Value) -> anyhow::Result<()> {
    if object["kind"] == "CustomResourceDefinition" {
        let path = crate::api_path(object)?;
        let patch = json!({"spec": object["spec"]});
        return send_request(client, Method::PATCH, &path, "application/merge-patch+json", &patch).await.map(drop);
    }
    let path = crate::api_path(object)?;
    let mut next = object.clone();
    match installation::read(client, object).await? {
        Some(found) => {
            next["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
            send_request(client, Method::PUT, &path, "application/json", &next).await.map(drop)
        }
        None => {
            let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
            send_request(client, Method::POST, collection, "application/json", &next).await.map(drop)
        }
    }
}

/// Waits until Karmada's API server serves a collection, and returns its objects. Until the control plane has applied the APIService, it
/// may still send requests to Crowsnest.
async fn wait_for_karmada(
    client: &kube::Client,
    collection: ApiCollection<'_>,
    stored: &[Value],
) -> anyhow::Result<Vec<Value>> {
    let api_version = collection.api_version;
    let uid = |object: &Value| object.pointer("/metadata/uid").cloned();
    let is_served_by_crowsnest =
        |object: &Value| migrated_uid(object).is_some() || stored.iter().any(|copy| uid(copy) == uid(object));
    let polling = async {
        loop {
            match list(client, collection).await {
                Ok(Some(found)) if !found.iter().any(is_served_by_crowsnest) => return found,
                Ok(_) => {}
                Err(error) => tracing::debug!(error = format!("{error:#}"), "{api_version} is not served yet"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let context = || format!("{api_version} is not served: start Karmada's API server for it, and try again");
    tokio::time::timeout(KARMADA_API_TIMEOUT, polling).await.with_context(context)
}

/// Lists all objects of a resource. `None` if the resource is not served.
pub(crate) async fn list(client: &kube::Client, collection: ApiCollection<'_>) -> anyhow::Result<Option<Vec<Value>>> {
    let ApiCollection { api_version, plural: resource, .. } = collection;
    let mut objects = Vec::new();
    let mut path = format!("/apis/{api_version}/{resource}?limit=500");
    loop {
        let list: Value = match client.request(Request::get(&path).body(Vec::new())?).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        };
        let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default().to_owned();
        for mut object in list["items"].as_array().cloned().unwrap_or_default() {
            // Items of a list may omit `kind`.
            object["kind"] = kind.as_str().into();
            objects.push(object);
        }
        match list.pointer("/metadata/continue").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            Some(token) => path = format!("/apis/{api_version}/{resource}?limit=500&continue={token}"),
            None => return Ok(Some(objects)),
        }
    }
}

/// Executes the steps of a plan.
async fn execute(
    client: &kube::Client,
    (collection, resource): (ApiCollection<'_>, &str),
    steps: &[Step],
    dry_run: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let collection_path = collection.path();
    for step in steps {
        let (name, verb) = match step {
            Step::Create(object) => (name(object), "created"),
            Step::Replace(object) => (name(object), "replaced"),
            Step::Delete(name) => (name.as_str(), "deleted"),
        };
        if !dry_run {
            let path = format!("{collection_path}/{name}");
            match step {
                Step::Create(object) => {
                    let response =
                        send_request(client, Method::POST, &collection_path, "application/json", object).await?;
                    write_status(client, &path, object, &response).await?;
                }
                Step::Replace(object) => {
                    let response = send_request(client, Method::PUT, &path, "application/json", object).await?;
                    write_status(client, &path, object, &response).await?;
                }
                Step::Delete(_) => {
                    // The finalizers were handled when the cluster was unregistered under Crowsnest.
                    let patch = json!({"metadata": {"finalizers": null}});
                    send_request(client, Method::PATCH, &path, "application/merge-patch+json", &patch).await?;
                    send_request(client, Method::DELETE, &path, "application/json", &json!({})).await?;
                }
            }
        }
        writeln!(out, "{resource}/{name} {}{verb}", if dry_run { "would be " } else { "" })?;
    }
    Ok(())
}

/// Writes the status of `object` to its `stored` copy; `path` is that of the copy.
pub(crate) async fn write_status(
    client: &kube::Client,
    path: &str,
    object: &Value,
    stored: &Value,
) -> anyhow::Result<Value> {
    let Some(status) = object.get("status") else { return Ok(stored.clone()) };
    let mut next = stored.clone();
    next["status"] = status.clone();
    send_request(client, Method::PUT, &format!("{path}/status"), "application/json", &next).await
}

pub(crate) async fn send_request(
    client: &kube::Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: &Value,
) -> anyhow::Result<Value> {
    let operation = format!("{method} {path}");
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
    client.request(request.body(serde_json::to_vec(body)?)?).await.context(operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_conversion_of_crds_is_kept() {
        let definition = |conversion: Value| {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "works.work.karmada.io", "uid": "u"}, "spec": {"group": "work.karmada.io", "conversion": conversion}})
        };
        let by_webhook =
            definition(json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://karmada-webhook"}}}));
        let part = restorable_part(&by_webhook, &by_webhook).unwrap();
        assert_eq!(part["spec"], json!({"conversion": by_webhook["spec"]["conversion"]}));
        let without_webhook = definition(json!({"strategy": "None"}));
        assert_eq!(restorable_part(&without_webhook, &without_webhook), None);
    }

    fn api_service(name: &str, group: &str) -> Value {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
            "spec": {"group": group, "version": "v1alpha1", "service": {"name": "karmada-aggregated-apiserver"}}})
    }

    #[test]
    fn karmadas_registrations_are_restored() {
        let api = api_service("v1alpha1.cluster.karmada.io", "cluster.karmada.io");
        let admission = crate::admission_manifests("https://localhost", "");
        let conversion = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name(&crowsnest_api::crd::crds(None)[0])}, "spec": {"conversion": {"strategy": "Webhook"}}});
        let webhooks =
            admission.iter().filter(|manifest| is_admission_manifest(manifest) && manifest.get("webhooks").is_some());
        for object in webhooks.chain([&api, &conversion]) {
            assert!(is_karmada_registration(object), "{object}");
        }
    }

    #[test]
    fn other_objects_are_not_restored() {
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "mallory"}, "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}});
        let other_name = api_service("v1.apps", "cluster.karmada.io");
        let other_group = api_service("v1alpha1.apps", "apps");
        let webhook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "mallory"}, "webhooks": []});
        let crd = name(&crowsnest_api::crd::crds(None)[0]).to_owned();
        let complete_definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": crd}, "spec": {"conversion": {}, "versions": []}});
        let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "mallory"}, "spec": {}});
        for object in [binding, other_name, other_group, webhook, complete_definition, policy, json!({}), json!(7)] {
            assert!(!is_karmada_registration(&object), "{object}");
        }
    }

    #[test]
    fn fields_set_by_the_api_server_are_omitted() {
        let found = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "mutating-config", "uid": "u", "resourceVersion": "7", "labels": {"app": "karmada-webhook"}},
            "webhooks": [{"name": "a"}]});
        let expected = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "mutating-config", "labels": {"app": "karmada-webhook"}}, "webhooks": [{"name": "a"}]});
        assert_eq!(restorable_part(&found, &found), Some(expected));
    }
}
