//! Push-mode registration, the way `karmadactl join` does it: service accounts and rights in the member, their tokens
//! and the Cluster object in the control plane.

use crate::Error;
use crowsnest_api::cluster::{Cluster, ClusterSpec, ClusterSyncMode, LocalSecretReference};
use crowsnest_api::names::ClusterName;
use http::Uri;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// Where credentials live, in the member and in the control plane, unless told otherwise.
pub const CLUSTER_NAMESPACE: &str = "karmada-cluster";
/// Service account whose token may impersonate callers; also the name of its role.
pub const IMPERSONATOR: &str = "karmada-impersonator";
/// Marks objects the control plane made for itself.
pub const SYSTEM_LABEL: (&str, &str) = ("karmada.io/system", "true");

/// The service account we act as in the member.
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

/// How to register a member.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    pub name: ClusterName,
    /// Namespace of the credentials on both sides.
    pub namespace: String,
    pub provider: Option<String>,
    pub region: Option<String>,
    pub zones: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// Joining again under the same name and id refreshes credentials instead of failing.
    pub refresh: bool,
    /// How long the member's token controller may take.
    pub token_timeout: Duration,
}

impl JoinOptions {
    pub fn new(name: ClusterName) -> Self {
        Self {
            name,
            namespace: CLUSTER_NAMESPACE.to_owned(),
            provider: None,
            region: None,
            zones: Vec::new(),
            labels: BTreeMap::new(),
            refresh: false,
            token_timeout: Duration::from_secs(30),
        }
    }
}

/// What was registered.
#[derive(Debug, Clone)]
pub struct Joined {
    pub name: ClusterName,
    /// UID of the member's kube-system namespace.
    pub id: String,
    /// False when an existing registration was refreshed.
    pub created: bool,
}

/// Registers the member that `member_config` points to with the control plane.
pub async fn join(
    control_plane: &Client,
    member_config: &kube::Config,
    options: &JoinOptions,
) -> Result<Joined, Error> {
    let member = Client::try_from(member_config.clone())
        .map_err(|e| Error::kube(format!("connecting to cluster {}", options.name), e))?;
    let id = cluster_id(&member).await?;
    let existing = not_registered_yet(control_plane, options, &id).await?;
    let tokens = credentials_in_member(&member, options).await?;
    ensure_namespace(control_plane, &options.namespace).await?;
    let ca_bundle = ca_bundle(member_config);
    put_secrets(control_plane, options, &tokens, ca_bundle.as_deref()).await?;
    let cluster = put_cluster(control_plane, member_config, options, &id, existing.is_some()).await?;
    own_secrets(control_plane, options, &cluster).await?;
    Ok(Joined { name: options.name.clone(), id, created: existing.is_none() })
}

/// UID of kube-system: the one thing every cluster has exactly once.
pub async fn cluster_id(member: &Client) -> Result<String, Error> {
    let namespaces: Api<Namespace> = Api::all(member.clone());
    let system = namespaces.get("kube-system").await.map_err(|e| Error::kube("reading namespace kube-system", e))?;
    system.uid().ok_or_else(|| Error::Join("namespace kube-system has no uid".to_owned()))
}

async fn not_registered_yet(control_plane: &Client, options: &JoinOptions, id: &str) -> Result<Option<Cluster>, Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let list = clusters.list(&Default::default()).await.map_err(|e| Error::kube("listing Clusters", e))?;
    let mut same_name = None;
    for cluster in list {
        let same_id = cluster.spec.id == id;
        if cluster.name_any() == options.name.as_str() {
            let name = options.name.clone();
            if !options.refresh {
                return Err(Error::NameTaken { name });
            }
            if !same_id && !cluster.spec.id.is_empty() {
                return Err(Error::OtherCluster { name, known: cluster.spec.id, found: id.to_owned() });
            }
            same_name = Some(cluster);
        } else if same_id {
            return Err(Error::IdTaken { id: id.to_owned(), name: cluster.name_any() });
        }
    }
    Ok(same_name)
}

struct Tokens {
    cluster: Vec<u8>,
    impersonator: Vec<u8>,
}

/// Service accounts, rights and token Secrets in the member.
async fn credentials_in_member(member: &Client, options: &JoinOptions) -> Result<Tokens, Error> {
    ensure_namespace(member, &options.namespace).await?;
    let account = service_account_name(&options.name);
    for name in [account.as_str(), IMPERSONATOR] {
        let accounts: Api<ServiceAccount> = Api::namespaced(member.clone(), &options.namespace);
        let wanted = ServiceAccount { metadata: system_metadata(name), ..ServiceAccount::default() };
        create_unless_there(&accounts, &wanted).await?;
    }
    ensure_rights(member, options, &account).await?;
    Ok(Tokens {
        cluster: token_of(member, options, &account).await?,
        impersonator: token_of(member, options, IMPERSONATOR).await?,
    })
}

async fn ensure_rights(member: &Client, options: &JoinOptions, account: &str) -> Result<(), Error> {
    let name = cluster_role_name(&options.name);
    let all = || Some(vec!["*".to_owned()]);
    let role = ClusterRole {
        metadata: system_metadata(&name),
        rules: Some(vec![
            PolicyRule { api_groups: all(), resources: all(), verbs: vec!["*".to_owned()], ..PolicyRule::default() },
            PolicyRule { non_resource_urls: all(), verbs: vec!["get".to_owned()], ..PolicyRule::default() },
        ]),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: system_metadata(&name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: name.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(options.namespace.clone()),
            ..Subject::default()
        }]),
    };
    apply_merge(&Api::all(member.clone()), &role).await?;
    apply_merge(&Api::all(member.clone()), &binding).await
}

/// The token the member's token controller puts into a Secret made for the account.
async fn token_of(member: &Client, options: &JoinOptions, account: &str) -> Result<Vec<u8>, Error> {
    let secrets: Api<Secret> = Api::namespaced(member.clone(), &options.namespace);
    let mut wanted = Secret {
        metadata: system_metadata(account),
        type_: Some("kubernetes.io/service-account-token".to_owned()),
        ..Secret::default()
    };
    let annotation = ("kubernetes.io/service-account.name".to_owned(), account.to_owned());
    wanted.metadata.annotations = Some(BTreeMap::from([annotation]));
    create_unless_there(&secrets, &wanted).await?;
    let deadline = tokio::time::Instant::now() + options.token_timeout;
    let mut pause = Duration::from_millis(20);
    loop {
        let secret = secrets.get(account).await.map_err(|e| Error::kube(format!("reading secret {account}"), e))?;
        if let Some(token) = secret.data.and_then(|mut data| data.remove("token")).filter(|token| !token.0.is_empty()) {
            return Ok(token.0);
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(Error::Join(format!(
                "secret {}/{account} got no token within {} s: does the cluster run the token controller?",
                options.namespace,
                options.token_timeout.as_secs()
            )));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

async fn put_secrets(
    control_plane: &Client,
    options: &JoinOptions,
    tokens: &Tokens,
    ca_bundle: Option<&[u8]>,
) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(control_plane.clone(), &options.namespace);
    let mut data = BTreeMap::from([("token".to_owned(), ByteString(tokens.cluster.clone()))]);
    if let Some(bundle) = ca_bundle {
        data.insert("caBundle".to_owned(), ByteString(bundle.to_vec()));
    }
    let secret = |name: &str, data| Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(data),
        ..Secret::default()
    };
    let impersonator = BTreeMap::from([("token".to_owned(), ByteString(tokens.impersonator.clone()))]);
    apply_merge(&secrets, &secret(options.name.as_str(), data)).await?;
    apply_merge(&secrets, &secret(&impersonator_secret_name(&options.name), impersonator)).await
}

async fn put_cluster(
    control_plane: &Client,
    member_config: &kube::Config,
    options: &JoinOptions,
    id: &str,
    exists: bool,
) -> Result<Cluster, Error> {
    let clusters: Api<Cluster> = Api::all(control_plane.clone());
    let cluster = cluster_object(member_config, options, id);
    let what = || format!("registering Cluster {}", options.name);
    if !exists {
        return clusters.create(&PostParams::default(), &cluster).await.map_err(|e| Error::kube(what(), e));
    }
    let patch = serde_json::json!({"metadata": {"labels": options.labels}, "spec": cluster.spec});
    let patched = clusters.patch(options.name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(|e| Error::kube(what(), e))
}

/// The Cluster object a registration makes. Pure.
pub fn cluster_object(member_config: &kube::Config, options: &JoinOptions, id: &str) -> Cluster {
    let reference = |name: String| Some(LocalSecretReference { namespace: options.namespace.clone(), name });
    let spec = ClusterSpec {
        id: id.to_owned(),
        sync_mode: ClusterSyncMode::Push,
        api_endpoint: endpoint_text(&member_config.cluster_url),
        secret_ref: reference(options.name.to_string()),
        impersonator_secret_ref: reference(impersonator_secret_name(&options.name)),
        insecure_skip_tls_verification: member_config.accept_invalid_certs,
        proxy_url: member_config.proxy_url.as_ref().map(ToString::to_string).unwrap_or_default(),
        provider: options.provider.clone().unwrap_or_default(),
        region: options.region.clone().unwrap_or_default(),
        zones: options.zones.clone(),
        ..ClusterSpec::default()
    };
    let mut cluster = Cluster { spec, ..Cluster::default() };
    cluster.metadata.name = Some(options.name.to_string());
    cluster.metadata.labels = (!options.labels.is_empty()).then(|| options.labels.clone());
    cluster
}

fn endpoint_text(url: &Uri) -> String {
    url.to_string().trim_end_matches('/').to_owned()
}

/// The Secrets go when the Cluster goes.
async fn own_secrets(control_plane: &Client, options: &JoinOptions, cluster: &Cluster) -> Result<(), Error> {
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
    for name in [options.name.to_string(), impersonator_secret_name(&options.name)] {
        secrets
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(|e| Error::kube(format!("setting the owner of secret {name}"), e))?;
    }
    Ok(())
}

/// Certificate authority of the kubeconfig as PEM.
fn ca_bundle(config: &kube::Config) -> Option<Vec<u8>> {
    use base64::Engine as _;
    let certificates = config.root_cert.as_ref().filter(|_| !config.accept_invalid_certs)?;
    let mut pem = String::new();
    for der in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        for (nth, character) in text.chars().enumerate() {
            if nth > 0 && nth % 64 == 0 {
                pem.push('\n');
            }
            pem.push(character);
        }
        pem.push_str("\n-----END CERTIFICATE-----\n");
    }
    Some(pem.into_bytes())
}

pub(crate) fn system_metadata(name: &str) -> ObjectMeta {
    let label = (SYSTEM_LABEL.0.to_owned(), SYSTEM_LABEL.1.to_owned());
    ObjectMeta { name: Some(name.to_owned()), labels: Some(BTreeMap::from([label])), ..ObjectMeta::default() }
}

async fn ensure_namespace(client: &Client, name: &str) -> Result<(), Error> {
    let namespace = Namespace { metadata: system_metadata(name), ..Namespace::default() };
    create_unless_there(&Api::<Namespace>::all(client.clone()), &namespace).await
}

async fn create_unless_there<K>(api: &Api<K>, object: &K) -> Result<(), Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let what = || format!("creating {} {}", K::kind(&()).to_lowercase(), object.name_any());
    match api.create(&PostParams::default(), object).await.map_err(|e| Error::kube(what(), e)) {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Creates, or overwrites the given fields of what is there.
async fn apply_merge<K>(api: &Api<K>, object: &K) -> Result<(), Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.name_any();
    let what = || format!("writing {} {name}", K::kind(&()).to_lowercase());
    match api.create(&PostParams::default(), object).await.map_err(|e| Error::kube(what(), e)) {
        Err(error) if error.is_already_exists() => {
            let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(object)).await;
            patched.map(drop).map_err(|e| Error::kube(what(), e))
        }
        other => other.map(drop),
    }
}
