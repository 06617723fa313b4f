//! Registration of members, as by `karmadactl join` in push mode and by Karmada's agent in pull mode: service
//! accounts and permissions in the member, their tokens and the Cluster object in the control plane.

use crate::write::{apply_merge, create_if_absent, ensure_namespace, revoke};
use crate::{ApiResources, Error, MemberPermissions, wait};
use crowsnest_api::cluster::{Cluster, ClusterSpec, ClusterSyncMode, LocalSecretReference};
use crowsnest_api::constants::AGENT_FIELD_MANAGER;
use crowsnest_api::constants::annotation::{
    IMPERSONATES, IMPERSONATES_ALL_ATTRIBUTES, REACHED_THROUGH, REACHED_THROUGH_AGENT, RIGHTS,
};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::user_agent;
use http::Uri;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Default namespace of the credentials in the member and in the control plane.
pub const CLUSTER_NAMESPACE: &str = "karmada-cluster";
/// Service account whose token may impersonate callers; also the name of its ClusterRole.
pub const IMPERSONATOR: &str = "karmada-impersonator";
/// The impersonator's ClusterRole if the member was joined with restricted permissions. Otherwise the control plane
/// maintains a role named like the account.
pub const JOINED_IMPERSONATOR: &str = "crowsnest-joined-impersonator";
/// Label of objects that the control plane manages.
pub const SYSTEM_LABEL: (&str, &str) = ("karmada.io/system", "true");

/// The service account that Crowsnest uses in the member.
pub fn service_account_name(cluster: &ClusterName) -> String {
    format!("karmada-{cluster}")
}

/// The ClusterRole (and binding) of that service account.
pub fn cluster_role_name(cluster: &ClusterName) -> String {
    format!("karmada-controller-manager:karmada-{cluster}")
}

/// Name of the Secret with the impersonator's token in the control plane.
pub fn impersonator_secret_name(cluster: &ClusterName) -> String {
    format!("{cluster}-impersonator")
}

/// Options of a registration.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    pub name: ClusterName,
    /// Namespace of the credentials in the member and in the control plane.
    pub namespace: String,
    pub location: ClusterLocation,
    pub labels: BTreeMap<String, String>,
    pub permissions: MemberPermissions,
    /// Refreshes the credentials if the cluster is already registered with the same name and ID. Otherwise the registration of
    /// such a cluster fails.
    pub refresh: bool,
    /// Time limit for the member's token controller.
    pub token_timeout: Duration,
    /// Pull: the member's agent registers it, and the member is reached only through the agent.
    pub sync_mode: ClusterSyncMode,
    /// The API endpoint of the Cluster; `None` means the server of the kubeconfig.
    pub api_endpoint: Option<Uri>,
    pub reported_tokens: ReportedTokens,
}

/// Location of a cluster, as shown in its Cluster object.
#[derive(Debug, Clone, Default)]
pub struct ClusterLocation {
    pub provider: Option<String>,
    pub region: Option<String>,
    pub zones: Vec<String>,
}

/// Selects the member's tokens that are stored in the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedTokens {
    /// Token of the service account that Crowsnest uses.
    pub cluster: bool,
    /// Token of the service account that may impersonate callers.
    pub impersonator: bool,
}

impl JoinOptions {
    pub fn new(name: ClusterName) -> Self {
        Self {
            name,
            namespace: CLUSTER_NAMESPACE.to_owned(),
            location: ClusterLocation::default(),
            labels: BTreeMap::new(),
            permissions: MemberPermissions::Full,
            refresh: false,
            token_timeout: Duration::from_secs(30),
            sync_mode: ClusterSyncMode::Push,
            api_endpoint: None,
            reported_tokens: ReportedTokens { cluster: true, impersonator: true },
        }
    }

    /// Field manager of the Secrets of a pull-mode cluster. Admission lets agents overwrite only Secrets that an agent wrote.
    fn field_manager(&self) -> Option<&'static str> {
        (self.sync_mode == ClusterSyncMode::Pull).then_some(AGENT_FIELD_MANAGER)
    }

    /// Names of the Secrets with the tokens in the control plane.
    fn secret_names(&self) -> impl Iterator<Item = String> {
        let cluster = self.reported_tokens.cluster.then(|| self.name.to_string());
        cluster.into_iter().chain(self.reported_tokens.impersonator.then(|| impersonator_secret_name(&self.name)))
    }
}

/// Result of a registration.
#[derive(Debug, Clone)]
pub struct JoinResult {
    pub name: ClusterName,
    /// UID of the member's kube-system namespace.
    pub id: String,
    /// True if the cluster was not registered before; false if an existing registration was refreshed.
    pub is_new: bool,
}

/// Registers the member that `member_config` points to with the control plane.
pub async fn join(
    control_plane: &Client,
    member_config: &kube::Config,
    options: &JoinOptions,
) -> Result<JoinResult, Error> {
    let (member, id, existing) = connect_and_find_existing(control_plane, member_config, options).await?;
    let tokens = create_credentials(&member, options).await?;
    let ca_bundle = ca_bundle(member_config);
    // An existing Cluster may have an endpoint of its author's choice: update it before its Secrets receive tokens.
    if existing.is_some() {
        put_cluster(control_plane, member_config, options, &id, existing.as_ref()).await?;
    }
    put_secrets(control_plane, options, tokens, ca_bundle).await?;
    let cluster = match existing {
        Some(ref existing) => existing.clone(),
        None => put_cluster(control_plane, member_config, options, &id, None).await?,
    };
    set_owner_of_secrets(control_plane, options, &cluster).await?;
    Ok(JoinResult { name: options.name.clone(), id, is_new: existing.is_none() })
}

/// Checks whether a join is possible, and returns its result. Changes nothing.
pub async fn preview_join(
    control_plane: &Client,
    member_config: &kube::Config,
    options: &JoinOptions,
) -> Result<JoinResult, Error> {
    let (_, id, existing) = connect_and_find_existing(control_plane, member_config, options).await?;
    Ok(JoinResult { name: options.name.clone(), id, is_new: existing.is_none() })
}

/// Connects to the member and returns its id, and its existing registration if that may be refreshed.
async fn connect_and_find_existing(
    control_plane: &Client,
    member_config: &kube::Config,
    options: &JoinOptions,
) -> Result<(Client, String, Option<Cluster>), Error> {
    let mut member_config = member_config.clone();
    user_agent::set_in_config(&mut member_config);
    let member = Client::try_from(member_config)
        .map_err(|e| Error::kube(format!("cannot connect to cluster {}", options.name), e))?;
    let id = cluster_id(&member).await?;
    let existing = find_existing(control_plane, options, &id).await?;
    Ok((member, id, existing))
}

/// UID of the namespace kube-system, which identifies the cluster.
pub async fn cluster_id(member: &Client) -> Result<String, Error> {
    let namespaces: Api<Namespace> = Api::all(member.clone());
    let system =
        namespaces.get("kube-system").await.map_err(|e| Error::kube("cannot read namespace kube-system", e))?;
    system.uid().ok_or_else(|| Error::Join("namespace kube-system has no uid".to_owned()))
}

async fn find_existing(control_plane: &Client, options: &JoinOptions, id: &str) -> Result<Option<Cluster>, Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let existing = match clusters.list(&Default::default()).await.map_err(|e| Error::kube("cannot list Clusters", e)) {
        // Agents may read their own Cluster only. The control plane checks that its ID is not registered by another name.
        Err(error) if error.is_forbidden() && options.sync_mode == ClusterSyncMode::Pull => {
            let problem = || format!("cannot read Cluster {}", options.name);
            clusters.get_opt(options.name.as_str()).await.map_err(|e| Error::kube(problem(), e))?.into_iter().collect()
        }
        listed => listed?.items,
    };
    let mut same_name = None;
    for cluster in existing {
        let same_id = cluster.spec.id == id;
        if cluster.name_any() == options.name.as_str() {
            let name = options.name.clone();
            if !options.refresh {
                let is_leaving = cluster.metadata.deletion_timestamp.is_some();
                return Err(if is_leaving { Error::Leaving { name } } else { Error::NameTaken { name } });
            }
            if !same_id && !cluster.spec.id.is_empty() {
                return Err(Error::OtherCluster { name, registered: cluster.spec.id, actual: id.to_owned() });
            }
            if cluster.spec.sync_mode != options.sync_mode {
                let registered = cluster.spec.sync_mode;
                return Err(Error::OtherMode { name, registered, requested: options.sync_mode.clone() });
            }
            same_name = Some(cluster);
        } else if same_id {
            return Err(Error::IdTaken { id: id.to_owned(), name: cluster.name_any() });
        }
    }
    Ok(same_name)
}

/// The tokens to store in the control plane.
struct Tokens {
    cluster: Option<Vec<u8>>,
    impersonator: Option<Vec<u8>>,
}

/// Creates service accounts, permissions and token Secrets in the member.
async fn create_credentials(member: &Client, options: &JoinOptions) -> Result<Tokens, Error> {
    let mut tokens = Tokens { cluster: None, impersonator: None };
    if options.secret_names().next().is_none() {
        return Ok(tokens);
    }
    ensure_namespace(member, &options.namespace).await?;
    if options.reported_tokens.cluster {
        let account = service_account_name(&options.name);
        ensure_account(member, options, &account).await?;
        ensure_permissions(member, options, &account).await?;
        tokens.cluster = Some(create_token(member, options, &account).await?);
    }
    if options.reported_tokens.impersonator {
        ensure_account(member, options, IMPERSONATOR).await?;
        tokens.impersonator = Some(create_token(member, options, IMPERSONATOR).await?);
    }
    Ok(tokens)
}

async fn ensure_account(member: &Client, options: &JoinOptions, name: &str) -> Result<(), Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(member.clone(), &options.namespace);
    let account = ServiceAccount { metadata: system_metadata(name), ..ServiceAccount::default() };
    create_if_absent(&accounts, &account).await
}

async fn ensure_permissions(member: &Client, options: &JoinOptions, account: &str) -> Result<(), Error> {
    let served = match options.permissions.needs_resources() {
        true => crate::discovery::discover(member).await?,
        false => ApiResources::default(),
    };
    let role = cluster_role_name(&options.name);
    grant(member, options, &role, account, options.permissions.rules(&served)).await?;
    match options.permissions.impersonator_rules() {
        Some(rules) => grant(member, options, JOINED_IMPERSONATOR, IMPERSONATOR, rules).await,
        // Revokes permissions of an earlier join.
        None => revoke(member, JOINED_IMPERSONATOR).await,
    }
}

/// Creates a ClusterRole with these rules, bound to one of the service accounts.
async fn grant(
    member: &Client,
    options: &JoinOptions,
    name: &str,
    account: &str,
    rules: Vec<PolicyRule>,
) -> Result<(), Error> {
    let role = ClusterRole { metadata: system_metadata(name), rules: Some(rules), ..ClusterRole::default() };
    let binding = ClusterRoleBinding {
        metadata: system_metadata(name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: name.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(options.namespace.clone()),
            ..Subject::default()
        }]),
    };
    apply_merge(&Api::all(member.clone()), &role, None).await?;
    apply_merge(&Api::all(member.clone()), &binding, None).await
}

/// Creates a token Secret for the account, waits until the member's token controller fills it, and returns the token.
async fn create_token(member: &Client, options: &JoinOptions, account: &str) -> Result<Vec<u8>, Error> {
    let secrets: Api<Secret> = Api::namespaced(member.clone(), &options.namespace);
    let mut new_secret = Secret {
        metadata: system_metadata(account),
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    };
    let annotation = ("kubernetes.io/service-account.name".to_owned(), account.to_owned());
    new_secret.metadata.annotations = Some(BTreeMap::from([annotation]));
    create_if_absent(&secrets, &new_secret).await?;
    let token = |secret: &Secret| secret.data.as_ref()?.get("token").filter(|token| !token.0.is_empty()).cloned();
    let has_token = |secret: Option<&Secret>| secret.and_then(token).is_some();
    let secret = wait::until(&secrets, account, options.token_timeout, has_token).await?;
    secret.flatten().as_ref().and_then(token).map(|token| token.0).ok_or_else(|| {
        Error::Join(format!(
            "secret {}/{account} has no token after {} s; check that the cluster runs the token controller",
            options.namespace,
            options.token_timeout.as_secs()
        ))
    })
}

async fn put_secrets(
    control_plane: &Client,
    options: &JoinOptions,
    tokens: Tokens,
    ca_bundle: Option<Vec<u8>>,
) -> Result<(), Error> {
    if options.secret_names().next().is_none() {
        return Ok(());
    }
    ensure_namespace(control_plane, &options.namespace).await?;
    let secrets: Api<Secret> = Api::namespaced(control_plane.clone(), &options.namespace);
    let secret = |name: String, data: Vec<(&str, Vec<u8>)>| Secret {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value))).collect()),
        ..Secret::default()
    };
    if let Some(token) = tokens.cluster {
        let data = [("token", token)].into_iter().chain(ca_bundle.map(|bundle| ("caBundle", bundle)));
        apply_merge(&secrets, &secret(options.name.to_string(), data.collect()), options.field_manager()).await?;
    }
    if let Some(token) = tokens.impersonator {
        let name = impersonator_secret_name(&options.name);
        apply_merge(&secrets, &secret(name, vec![("token", token)]), options.field_manager()).await?;
    }
    Ok(())
}

async fn put_cluster(
    control_plane: &Client,
    member_config: &kube::Config,
    options: &JoinOptions,
    id: &str,
    existing: Option<&Cluster>,
) -> Result<Cluster, Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let cluster = cluster_object(member_config, options, id);
    let problem = || format!("cannot register Cluster {}", options.name);
    let Some(existing) = existing else {
        return clusters.create(&PostParams::default(), &cluster).await.map_err(|e| Error::kube(problem(), e));
    };
    let mut annotations = serde_json::json!(cluster.metadata.annotations.unwrap_or_default());
    // With full permissions the value is null, so the merge patch deletes the annotation of an earlier join.
    annotations[RIGHTS] = options.permissions.annotation_value().into();
    let metadata = serde_json::json!({"labels": options.labels, "annotations": annotations});
    let patch = serde_json::json!({"metadata": metadata, "spec": cluster.spec});
    let object = serde_json::to_value(existing)
        .map_err(|e| Error::Parse { problem: format!("cannot read Cluster {}", options.name), source: e.into() })?;
    if is_unchanged_by(&object, &patch) {
        return Ok(existing.clone());
    }
    let patched = clusters.patch(options.name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(|e| Error::kube(problem(), e))
}

/// True if a merge patch would change nothing. Has no side effects.
fn is_unchanged_by(object: &Value, patch: &Value) -> bool {
    match patch {
        Value::Object(fields) => fields.iter().all(|(key, patched_value)| match object.get(key) {
            Some(value) => is_unchanged_by(value, patched_value),
            None => is_unchanged_by(&Value::Null, patched_value),
        }),
        patched_value => object == patched_value,
    }
}

/// The Cluster object of a registration. Has no side effects.
pub fn cluster_object(member_config: &kube::Config, options: &JoinOptions, id: &str) -> Cluster {
    let is_pull = options.sync_mode == ClusterSyncMode::Pull;
    let reference = |name: String| LocalSecretReference { namespace: options.namespace.clone(), name };
    // The agent's own proxy is not used from the control plane.
    let proxy_url = member_config.proxy_url.as_ref().filter(|_| !is_pull);
    let ClusterLocation { provider, region, zones } = options.location.clone();
    let spec = ClusterSpec {
        id: id.to_owned(),
        sync_mode: options.sync_mode.clone(),
        api_endpoint: endpoint_text(options.api_endpoint.as_ref().unwrap_or(&member_config.cluster_url)),
        secret_ref: options.reported_tokens.cluster.then(|| reference(options.name.to_string())),
        impersonator_secret_ref: options
            .reported_tokens
            .impersonator
            .then(|| reference(impersonator_secret_name(&options.name))),
        insecure_skip_tls_verification: member_config.accept_invalid_certs,
        proxy_url: proxy_url.map(ToString::to_string).unwrap_or_default(),
        provider: provider.unwrap_or_default(),
        region: region.unwrap_or_default(),
        zones,
        ..ClusterSpec::default()
    };
    let mut cluster = Cluster { spec, ..Cluster::default() };
    cluster.metadata.name = Some(options.name.to_string());
    cluster.metadata.labels = (!options.labels.is_empty()).then(|| options.labels.clone());
    let mut annotations = BTreeMap::new();
    if is_pull {
        annotations.insert(REACHED_THROUGH.to_owned(), REACHED_THROUGH_AGENT.to_owned());
    }
    if let Some(permissions) = options.permissions.annotation_value() {
        annotations.insert(RIGHTS.to_owned(), permissions.to_owned());
        annotations.insert(IMPERSONATES.to_owned(), IMPERSONATES_ALL_ATTRIBUTES.to_owned());
    }
    cluster.metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    cluster
}

fn endpoint_text(url: &Uri) -> String {
    url.to_string().trim_end_matches('/').to_owned()
}

/// Makes the Cluster the owner of the Secrets, so that they are deleted with it.
async fn set_owner_of_secrets(control_plane: &Client, options: &JoinOptions, cluster: &Cluster) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(control_plane.clone(), &options.namespace);
    let owner = OwnerReference {
        api_version: "cluster.karmada.io/v1alpha1".to_owned(),
        kind: "Cluster".to_owned(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let patch = serde_json::json!({"metadata": {"ownerReferences": [owner]}});
    for name in options.secret_names() {
        secrets
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(|e| Error::kube(format!("cannot set the owner of secret {name}"), e))?;
    }
    Ok(())
}

/// Certificate authority of the kubeconfig as PEM.
fn ca_bundle(config: &kube::Config) -> Option<Vec<u8>> {
    let certificates = config.root_cert.as_ref().filter(|_| !config.accept_invalid_certs)?;
    Some(certificates_as_pem(certificates).into_bytes())
}

/// Encodes DER certificates as concatenated PEM, the format of kubeconfigs and Secrets.
pub fn certificates_as_pem(certificates: &[impl AsRef<[u8]>]) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    let block = |der: &[u8]| pem::encode_config(&pem::Pem::new("CERTIFICATE", der), lines);
    certificates.iter().map(|der| block(der.as_ref())).collect()
}

pub(crate) fn system_metadata(name: &str) -> ObjectMeta {
    let label = (SYSTEM_LABEL.0.to_owned(), SYSTEM_LABEL.1.to_owned());
    ObjectMeta { name: Some(name.to_owned()), labels: Some(BTreeMap::from([label])), ..ObjectMeta::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::both((true, true), json!({"secretRef": {"namespace": "karmada-cluster", "name": "m1"},
        "impersonatorSecretRef": {"namespace": "karmada-cluster", "name": "m1-impersonator"}}))]
    #[case::impersonator_only((false, true),
        json!({"impersonatorSecretRef": {"namespace": "karmada-cluster", "name": "m1-impersonator"}}))]
    #[case::none((false, false), json!({}))]
    fn secret_references_match_the_reported_tokens(
        #[case] (cluster, impersonator): (bool, bool),
        #[case] references: Value,
    ) {
        let mut member = kube::Config::new(Uri::from_static("https://10.96.0.1:443/"));
        // A proxy on the agent's side.
        member.proxy_url = Some(Uri::from_static("http://proxy:3128"));
        let options = JoinOptions {
            sync_mode: ClusterSyncMode::Pull,
            api_endpoint: Some(Uri::from_static("https://m1.example:6443")),
            reported_tokens: ReportedTokens { cluster, impersonator },
            ..JoinOptions::new(ClusterName::parse("m1").unwrap())
        };
        let object = cluster_object(&member, &options, "uid");
        let mut spec = json!({"id": "uid", "syncMode": "Pull", "apiEndpoint": "https://m1.example:6443"});
        spec.as_object_mut().unwrap().extend(references.as_object().unwrap().clone());
        assert_eq!(serde_json::to_value(&object.spec).unwrap(), spec);
        assert_eq!(object.annotations()["fleet.crowsnest.io/reached-through"], "agent");
    }

    #[rstest]
    #[case::same_value(json!({"spec": {"id": "a", "taints": []}}), json!({"spec": {"id": "a"}}), true)]
    #[case::another_value(json!({"spec": {"id": "a"}}), json!({"spec": {"id": "b"}}), false)]
    #[case::a_new_field(json!({"spec": {"id": "a"}}), json!({"spec": {"region": "eu"}}), false)]
    #[case::nothing_to_set(json!({"metadata": {}}), json!({"metadata": {"labels": {}}}), true)]
    #[case::a_first_label(json!({"metadata": {}}), json!({"metadata": {"labels": {"a": "b"}}}), false)]
    #[case::a_shorter_list(json!({"zones": ["a", "b"]}), json!({"zones": ["a"]}), false)]
    fn patches_that_change_nothing_are_not_sent(#[case] object: Value, #[case] patch: Value, #[case] expected: bool) {
        assert_eq!(is_unchanged_by(&object, &patch), expected);
    }
}
