//! `ServiceAccount` admission: sets a pod's service account, mounts its token, and adds its image pull secrets.
//!
//! The account must exist. Token, cluster certificate and namespace are mounted in one projected volume, unless the
//! pod or the account opts out.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::Registry;
use crowsnest_registry::admission::{Admission, Attributes, Mutation, Operation, Validation};
use crowsnest_registry::create::generate_name;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use serde_json::{Value, json};

/// Service account of pods that do not name one.
const DEFAULT_ACCOUNT: &str = "default";
const TOKEN_VOLUME_PREFIX: &str = "kube-api-access-";
const TOKEN_MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of mounted tokens (`serviceaccount.WarnOnlyBoundTokenExpirationSeconds`).
const TOKEN_EXPIRATION_SECONDS: i64 = 60 * 60 + 7;
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
const ENFORCE_SECRETS_ANNOTATION: &str = "kubernetes.io/enforce-mountable-secrets";
/// Maximum time that a new pod waits for the default account of a new namespace.
const DEFAULT_ACCOUNT_TIMEOUT: Duration = Duration::from_millis(1500);

/// The admission plugin.
pub struct ServiceAccounts(Weak<Registry>);

impl ServiceAccounts {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self(Arc::downgrade(registry))
    }

    /// The service account of a pod; an error if it does not exist.
    async fn account_of(&self, a: &Attributes<'_>, pod: &Value) -> ApiResult<Value> {
        let name = pod["spec"]["serviceAccountName"].as_str().unwrap_or_default();
        let namespace = a.ctx.namespace.as_str();
        let account = match self.0.upgrade() {
            Some(registry) => find_account(&registry, namespace, name).await,
            None => None,
        };
        account.ok_or_else(|| {
            let reason = format!("serviceaccount \"{name}\" not found");
            forbidden_error(a, format!("error looking up service account {namespace}/{name}: {reason}"))
        })
    }
}

/// Finds an account; waits for the default account of a new namespace.
async fn find_account(registry: &Registry, namespace: &str, name: &str) -> Option<Value> {
    let (table, key) = (ResourceKey::new("", "serviceaccounts"), ObjectKey::new(namespace, name));
    let since = registry.store.revision();
    let account = registry.store.object(&table, &key);
    if account.is_some() || name != DEFAULT_ACCOUNT {
        return account;
    }
    let mut changes = registry.store.watch(&table, since).ok()?;
    let created_account = async {
        while let Ok(changes) = changes.next().await {
            if changes.iter().any(|change| change.key == key) {
                return registry.store.object(&table, &key);
            }
        }
        None
    };
    tokio::time::timeout(DEFAULT_ACCOUNT_TIMEOUT, created_account).await.ok().flatten()
}

fn forbidden_error(a: &Attributes<'_>, reason: String) -> ApiError {
    ApiError::forbidden("", "pods", a.name, reason)
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some()
}

#[async_trait]
impl Admission for ServiceAccounts {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let is_create = a.operation == Operation::Create && a.is_for("", "pods");
        let Some(pod) = object.filter(|pod| is_create && pod["spec"].is_object() && !is_mirror(pod)) else {
            return Ok(());
        };
        if pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
            pod["spec"]["serviceAccountName"] = DEFAULT_ACCOUNT.into();
        }
        let account = self.account_of(a, pod).await?;
        apply_account(pod, &account, || generate_name(TOKEN_VOLUME_PREFIX));
        Ok(())
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let is_for_pods = a.resource.gvr.group.is_empty() && &*a.resource.gvr.resource == "pods";
        let Some(pod) = object.filter(|_| is_for_pods) else { return Ok(()) };
        let container_lists: &[&str] = match (a.operation, a.ctx.subresource.as_str()) {
            (Operation::Create, "") if is_mirror(pod) => {
                return check_mirror_pod(pod).map_err(|reason| forbidden_error(a, reason.into()));
            }
            (Operation::Create, "") => &["initContainers", "containers"],
            (Operation::Update, "ephemeralcontainers") => &["ephemeralContainers"],
            _ => return Ok(()),
        };
        if pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
            let reason = format!("no service account specified for pod {}/{}", a.ctx.namespace, pod.name());
            return Err(forbidden_error(a, reason));
        }
        let account = self.account_of(a, pod).await?;
        match account["metadata"]["annotations"][ENFORCE_SECRETS_ANNOTATION].as_str() {
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => {
                check_secrets(pod, &account, container_lists).map_err(|reason| forbidden_error(a, reason))
            }
            _ => Ok(()),
        }
    }
}

/// Adds the token volume and image pull secrets of an account to a pod. `generate_volume_name` is called at most once.
fn apply_account(pod: &mut Value, account: &Value, generate_volume_name: impl FnOnce() -> String) {
    let mounts_token = |object: &Value| object["automountServiceAccountToken"].as_bool();
    if mounts_token(&pod["spec"]).or_else(|| mounts_token(account)).unwrap_or(true) {
        mount_token(pod, generate_volume_name);
    }
    if items(&pod["spec"], "imagePullSecrets").next().is_none() {
        let secrets: Vec<Value> =
            items(account, "imagePullSecrets").map(|secret| json!({"name": secret["name"]})).collect();
        if !secrets.is_empty() {
            pod["spec"]["imagePullSecrets"] = secrets.into();
        }
    }
}

/// Items of a list field; none if it is absent.
fn items<'a>(object: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object[list].as_array().into_iter().flatten()
}

/// Mounts the token in all containers, from an existing token volume or a new one.
fn mount_token(pod: &mut Value, generate_volume_name: impl FnOnce() -> String) {
    let names = items(&pod["spec"], "volumes").filter_map(|volume| volume["name"].as_str());
    let existing_name = names.into_iter().find(|name| name.starts_with(TOKEN_VOLUME_PREFIX)).map(str::to_owned);
    let has_volume = existing_name.is_some();
    let name = existing_name.unwrap_or_else(generate_volume_name);
    let mut is_mounted = false;
    for list in ["initContainers", "containers"] {
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            // The pod's own mount at this path takes precedence.
            if items(container, "volumeMounts").any(|mount| mount["mountPath"] == TOKEN_MOUNT_PATH) {
                continue;
            }
            push(container, "volumeMounts", json!({"name": name, "readOnly": true, "mountPath": TOKEN_MOUNT_PATH}));
            is_mounted = true;
        }
    }
    if is_mounted && !has_volume {
        push(&mut pod["spec"], "volumes", json!({"name": name, "projected": token_volume()}));
    }
}

fn push(object: &mut Value, list: &str, item: Value) {
    match object.get_mut(list).and_then(Value::as_array_mut) {
        Some(items) => items.push(item),
        None => object[list] = json!([item]),
    }
}

fn token_volume() -> Value {
    json!({
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_EXPIRATION_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ],
    })
}

/// Rejects references of a mirror pod to API objects. Mirror pods represent static pods of a kubelet.
fn check_mirror_pod(pod: &Value) -> Result<(), &'static str> {
    if !pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if references_secrets(&pod["spec"]) {
        return Err("a mirror pod may not reference secrets");
    }
    let sources = items(&pod["spec"], "volumes").flat_map(|volume| items(&volume["projected"], "sources"));
    if sources.into_iter().any(|source| source["serviceAccountToken"].is_object()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// True if a part of a pod references a Secret (`podutil.VisitPodSecretNames`).
fn references_secrets(part: &Value) -> bool {
    match part {
        Value::Array(parts) => parts.iter().any(references_secrets),
        Value::Object(fields) => fields.iter().any(|(field, value)| match field.as_str() {
            "imagePullSecrets" => value.as_array().is_some_and(|secrets| !secrets.is_empty()),
            "secretRef" | "secretKeyRef" | "secret" | "nodePublishSecretRef" => value.is_object(),
            "azureFile" => value["secretName"].is_string(),
            _ => references_secrets(value),
        }),
        _ => false,
    }
}

/// Rejects Secrets that the account does not list. Checks the containers in `container_lists`, and the other parts of
/// the pod if `containers` is among them.
fn check_secrets(pod: &Value, account: &Value, container_lists: &[&str]) -> Result<(), String> {
    let name = account.name();
    let lists_secret = |list: &str, secret: &Value| items(account, list).any(|listed| listed["name"] == *secret);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let checks_other_parts = container_lists.contains(&"containers");
    for volume in items(&pod["spec"], "volumes").filter(|_| checks_other_parts) {
        let secret = &volume["secret"]["secretName"];
        if volume["secret"].is_object() && !lists_secret("secrets", secret) {
            return Err(format!(
                "volume with secret.secretName=\"{}\" is not allowed because service account {name} does not reference that secret",
                text(secret)
            ));
        }
    }
    for list in container_lists {
        let container_type = match *list {
            "initContainers" => "init container",
            "ephemeralContainers" => "ephemeral container",
            _ => "container",
        };
        for container in items(&pod["spec"], list) {
            let env = items(container, "env").filter_map(|env| {
                let secret = env.pointer("/valueFrom/secretKeyRef")?;
                Some((format!("envVar {}", text(&env["name"])), &secret["name"]))
            });
            let from = items(container, "envFrom").filter_map(|from| {
                Some(("envFrom".to_owned(), &from.get("secretRef").filter(|r| r.is_object())?["name"]))
            });
            for (source, secret) in env.chain(from) {
                if !lists_secret("secrets", secret) {
                    return Err(format!(
                        "{container_type} {} with {source} referencing secret.secretName=\"{}\" is not allowed because service account {name} does not reference that secret",
                        text(&container["name"]),
                        text(secret)
                    ));
                }
            }
        }
    }
    for (index, secret) in items(&pod["spec"], "imagePullSecrets").enumerate().filter(|_| checks_other_parts) {
        if !lists_secret("imagePullSecrets", &secret["name"]) {
            return Err(format!(
                "imagePullSecrets[{index}].name=\"{}\" is not allowed because service account {name} does not reference that imagePullSecret",
                text(&secret["name"])
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(mounts: &[(&str, &str)]) -> Value {
        let mounts: Vec<Value> = mounts
            .iter()
            .map(|(name, path)| match *path {
                TOKEN_MOUNT_PATH if name.starts_with(TOKEN_VOLUME_PREFIX) => {
                    json!({"name": name, "readOnly": true, "mountPath": path})
                }
                path => json!({"name": name, "mountPath": path}),
            })
            .collect();
        if mounts.is_empty() { json!({}) } else { json!({"volumeMounts": mounts}) }
    }

    #[test]
    fn pods_get_tokens_and_pull_secrets_of_their_account() {
        let volume = || json!({"name": "kube-api-access-x", "projected": token_volume()});
        let token = container(&[("kube-api-access-x", TOKEN_MOUNT_PATH)]);
        let none = json!({});
        // Name, spec, account, resulting spec.
        let cases = [
            (
                "every container mounts the token",
                json!({"containers": [container(&[("data", "/data")]), {}], "initContainers": [{}], "volumes": [{"name": "data"}]}),
                none.clone(),
                json!({"containers": [container(&[("data", "/data"), ("kube-api-access-x", TOKEN_MOUNT_PATH)]), token],
                    "initContainers": [token], "volumes": [{"name": "data"}, volume()]}),
            ),
            (
                "the container has a mount at this path",
                json!({"containers": [container(&[("mine", TOKEN_MOUNT_PATH)])]}),
                none.clone(),
                json!({"containers": [container(&[("mine", TOKEN_MOUNT_PATH)])]}),
            ),
            (
                "the pod has a token volume",
                json!({"containers": [{}], "volumes": [{"name": "kube-api-access-own"}]}),
                none.clone(),
                json!({"containers": [container(&[("kube-api-access-own", TOKEN_MOUNT_PATH)])], "volumes": [{"name": "kube-api-access-own"}]}),
            ),
            (
                "the account opts out",
                json!({"containers": [{}]}),
                json!({"automountServiceAccountToken": false}),
                json!({"containers": [{}]}),
            ),
            (
                "the pod opts out",
                json!({"containers": [{}], "automountServiceAccountToken": false}),
                json!({"automountServiceAccountToken": true}),
                json!({"containers": [{}], "automountServiceAccountToken": false}),
            ),
            (
                "the pod has precedence over the account",
                json!({"containers": [{}], "automountServiceAccountToken": true}),
                json!({"automountServiceAccountToken": false}),
                json!({"containers": [token], "automountServiceAccountToken": true, "volumes": [volume()]}),
            ),
            (
                "pull secrets of the account",
                json!({"containers": []}),
                json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
                json!({"containers": [], "imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
            ),
            (
                "the pod has pull secrets",
                json!({"containers": [], "imagePullSecrets": [{"name": "mine"}]}),
                json!({"imagePullSecrets": [{"name": "a"}]}),
                json!({"containers": [], "imagePullSecrets": [{"name": "mine"}]}),
            ),
        ];
        for (case, spec, account, expected) in cases {
            let mut pod = json!({"spec": spec});
            apply_account(&mut pod, &account, || "kube-api-access-x".into());
            assert_eq!(pod["spec"], expected, "{case}");
        }
    }

    #[test]
    fn mirror_pods_cannot_reference_api_objects() {
        let cases = [
            (json!({"containers": [{"env": [{"name": "A", "value": "b"}]}]}), None),
            (json!({"serviceAccountName": "robot"}), Some("a mirror pod may not reference service accounts")),
            (json!({"volumes": [{"secret": {"secretName": "s"}}]}), Some("a mirror pod may not reference secrets")),
            (
                json!({"containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}),
                Some("a mirror pod may not reference secrets"),
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]}),
                Some("a mirror pod may not use ServiceAccountToken volume projections"),
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(check_mirror_pod(&json!({"spec": spec})).err(), expected, "{spec}");
        }
    }

    #[test]
    fn only_listed_secrets_are_mountable() {
        let account = json!({"metadata": {"name": "robot"}, "secrets": [{"name": "ours"}], "imagePullSecrets": [{"name": "pull"}]});
        let both: &[&str] = &["initContainers", "containers"];
        let env = |name: &str| json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": name}}}]);
        let cases = [
            (both, json!({"volumes": [{"secret": {"secretName": "ours"}}, {"emptyDir": {}}]}), None),
            (
                both,
                json!({"volumes": [{"secret": {"secretName": "x"}}]}),
                Some("volume with secret.secretName=\"x\" is"),
            ),
            (both, json!({"containers": [{"name": "c", "env": env("ours")}]}), None),
            (
                both,
                json!({"initContainers": [{"name": "c", "env": env("x")}]}),
                Some("init container c with envVar E referencing secret.secretName=\"x\" is"),
            ),
            (
                both,
                json!({"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "m"}}, {"secretRef": {"name": "x"}}]}]}),
                Some("container c with envFrom referencing secret.secretName=\"x\" is"),
            ),
            (
                both,
                json!({"imagePullSecrets": [{"name": "pull"}, {"name": "x"}]}),
                Some("imagePullSecrets[1].name=\"x\" is"),
            ),
            (
                &["ephemeralContainers"],
                json!({"ephemeralContainers": [{"name": "c", "env": env("x")}], "imagePullSecrets": [{"name": "x"}]}),
                Some("ephemeral container c with envVar E referencing secret.secretName=\"x\" is"),
            ),
        ];
        for (container_lists, spec, expected) in cases {
            let error = check_secrets(&json!({"spec": spec}), &account, container_lists).err();
            match (&error, expected) {
                (None, None) => {}
                (Some(error), Some(start)) => {
                    let start = format!("{start} not allowed because service account robot does not reference that ");
                    assert!(error.starts_with(&start), "{error}");
                }
                _ => panic!("{spec}: {error:?}"),
            }
        }
    }
}
