//! Installs and removes the objects that `serve` needs in its control plane, in dependency order, and keeps a ConfigMap that records
//! the installation. `crowsnest install` and `uninstall` write the ConfigMap; `doctor` reads it.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_api::aggregated_groups::{ApiGroup, aggregated_groups};
use crowsnest_members::join::certificates_as_pem;
use crowsnest_members::uninstall;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::serving::{self, ServingSecret};
use super::{InstallError, SYSTEM_NAMESPACE, ServingEndpoint, api_path, foreign_server};

/// Name of the ConfigMap that records the installation.
const RECORD_CONFIG_MAP: &str = "crowsnest-installed";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Record of an installation: the endpoints of `serve` as the control plane reaches them, and the registered groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub version: String,
    pub host: String,
    pub port: u16,
    /// Host and port of the `webhook` role, if it runs in another process.
    pub webhook_endpoint: Option<(String, u16)>,
    pub metrics_adapter: bool,
}

impl Record {
    pub fn new(host: String, port: u16, metrics_adapter: bool) -> Self {
        Self { version: VERSION.to_owned(), host, port, webhook_endpoint: None, metrics_adapter }
    }

    /// Returns the record with the version of this binary.
    pub fn with_current_version(&self) -> Self {
        Self { version: VERSION.to_owned(), ..self.clone() }
    }

    /// Host and port of the webhook endpoint.
    pub fn webhook(&self) -> (&str, u16) {
        self.webhook_endpoint.as_ref().map_or((self.host.as_str(), self.port), |(host, port)| (host.as_str(), *port))
    }

    /// Host names of the serving certificate in addition to those of the Service.
    fn extra_host_names(&self) -> Vec<&str> {
        let mut hosts = vec![self.host.as_str(), self.webhook().0];
        hosts.dedup();
        hosts
    }

    /// Base URL of the webhooks.
    pub fn webhook_base_url(&self) -> String {
        let (host, port) = self.webhook();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("https://{host}:{port}/webhooks")
    }

    fn manifest(&self) -> Value {
        let mut data = json!({"version": self.version, "host": self.host, "port": self.port.to_string(),
            "metricsAdapter": self.metrics_adapter.to_string()});
        if let Some((host, port)) = &self.webhook_endpoint {
            data["webhookHost"] = host.as_str().into();
            data["webhookPort"] = port.to_string().into();
        }
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": RECORD_CONFIG_MAP, "namespace": SYSTEM_NAMESPACE},
            "data": data,
        })
    }

    fn from_config_map(map: &ConfigMap) -> anyhow::Result<Self> {
        let text = |key: &str| {
            let found = map.data.as_ref().and_then(|data| data.get(key));
            found.cloned().with_context(|| format!("ConfigMap {SYSTEM_NAMESPACE}/{RECORD_CONFIG_MAP} has no {key}"))
        };
        let port = |key: &str| {
            text(key)?
                .parse()
                .with_context(|| format!("cannot parse {key} of ConfigMap {SYSTEM_NAMESPACE}/{RECORD_CONFIG_MAP}"))
        };
        let webhook_endpoint =
            text("webhookHost").ok().map(|host| anyhow::Ok((host, port("webhookPort")?))).transpose()?;
        Ok(Self {
            version: text("version")?,
            host: text("host")?,
            port: port("port")?,
            webhook_endpoint,
            metrics_adapter: text("metricsAdapter")? == "true",
        })
    }
}

/// Reads the record of the installation; `None` if nothing is installed.
pub async fn read_record(client: &kube::Client) -> anyhow::Result<Option<Record>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = maps
        .get_opt(RECORD_CONFIG_MAP)
        .await
        .with_context(|| format!("cannot read ConfigMap {SYSTEM_NAMESPACE}/{RECORD_CONFIG_MAP}"))?;
    found.map(|map| Record::from_config_map(&map)).transpose()
}

/// Parameters of [`install`].
pub struct InstallRequest {
    pub record: Record,
    /// CA of `serve`'s certificate, as PEM; `None` if `install` issues the certificate.
    pub ca: Option<String>,
    /// Replace the APIServices of groups that another server serves.
    pub take_over: bool,
    /// Address of the control plane for its clients, and its CA as PEM.
    pub advertised_endpoint: Option<(String, String)>,
}

/// Returns the address and the CA of the control plane that agents use. They are read from `kube-public/cluster-info`;
/// `None` if another tool wrote that ConfigMap. If it does not exist, the address and the CA of this client are
/// returned.
pub async fn read_advertised_endpoint(
    client: &kube::Client,
    config: &kube::Config,
) -> anyhow::Result<Option<(String, String)>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    match maps.get_opt("cluster-info").await.context("cannot read ConfigMap kube-public/cluster-info")? {
        Some(map) => super::agents::parse_cluster_info(&map),
        None => {
            let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
            Ok(config.root_cert.as_deref().map(|ca| (server, certificates_as_pem(ca))))
        }
    }
}

/// Manifests that are applied before the aggregated groups are registered, with the Secret of the serving certificate
/// in `serving_secret`.
fn prerequisites(request: &InstallRequest, ca: &str, serving_secret: Option<&ServingSecret>) -> Vec<Value> {
    let webhooks = request.record.webhook_base_url();
    let mut manifests = super::base_manifests();
    manifests.extend(serving_secret.map(ServingSecret::manifest));
    manifests.extend(super::crd_manifests(&webhooks, ca));
    manifests.extend(super::admission_manifests(&webhooks, ca));
    if let Some((server, ca)) = &request.advertised_endpoint {
        manifests.extend(super::agents::cluster_info(server, ca));
    }
    manifests.push(request.record.manifest());
    manifests
}

/// APIServices of the aggregated groups, with their Service.
fn group_registrations(request: &InstallRequest, ca: String, groups: &[&ApiGroup]) -> Vec<Value> {
    let endpoint = ServingEndpoint { host: request.record.host.clone(), port: request.record.port, ca };
    super::aggregation_manifests(&endpoint, groups)
}

/// Returns the manifests that [`install`] would apply. Fails if `install` issues the certificate and has not done so
/// yet, because its CA is unknown then.
pub async fn render(client: &kube::Client, request: &InstallRequest) -> anyhow::Result<Vec<Value>> {
    let ca = match &request.ca {
        Some(ca) => ca.clone(),
        None => {
            let secret = serving::read_secret(client).await?;
            let reason = "the serving certificate has not been issued yet; set --ca-file to the CA of your certificate, or install without --dry-run";
            secret.context(reason)?.authority.certificate
        }
    };
    let foreign_name = |service: &APIService| foreign_server(service).map(|_| service.name_any());
    let foreign_names: Vec<String> = registered_api_services(client).await?.iter().filter_map(foreign_name).collect();
    // Metrics groups that another server serves are not registered.
    let groups = aggregated_groups(request.record.metrics_adapter);
    let groups: Vec<&ApiGroup> = groups
        .filter(|group| !group.is_metrics || !super::api_service_names(group).any(|name| foreign_names.contains(&name)))
        .collect();
    // The Secret is omitted, because private keys must not be printed.
    let mut manifests = prerequisites(request, &ca, None);
    manifests.extend(group_registrations(request, ca, &groups));
    Ok(manifests)
}

/// Installs Crowsnest or upgrades an installation to this version. Writes one line per object to `out`.
pub async fn install(
    client: &kube::Client,
    request: &InstallRequest,
    wait: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if let Some(installed) = read_record(client).await? {
        check_version_skew(&installed.version, VERSION).map_err(anyhow::Error::msg)?;
    }
    let foreign = foreign_api_services(client).await?;
    if let (Some((name, server)), false) = (foreign.first(), request.take_over) {
        bail!("{name} is served by {server}; run `crowsnest migrate` first to copy its objects");
    }
    let serving_secret = match request.ca {
        Some(_) => None,
        None => Some(serving::issue_or_renew(
            serving::read_secret(client).await?,
            &request.record.extra_host_names(),
            Timestamp::now(),
        )?),
    };
    let ca = request.ca.clone().or_else(|| serving_secret.as_ref().map(|secret| secret.authority.certificate.clone()));
    let ca = ca.context("the CA of the serving certificate is unknown")?;
    let manifests = prerequisites(request, &ca, serving_secret.as_ref());
    if !foreign.is_empty() {
        // Karmada's configurations have the same names and may contain webhooks that Crowsnest does not serve.
        for manifest in manifests.iter().filter(|manifest| is_admission_manifest(manifest)) {
            delete(client, manifest).await?;
        }
    }
    // Stored objects are copied before webhooks are registered for the new kinds.
    super::stored_kind_migration::copy(client, out).await?;
    super::apply_all(client, &manifests).await?;
    // The discovery documents of the aggregated groups are derived from the CRDs of the stored kinds, so those must be served first.
    let groups = super::resolve_groups(client, request.record.metrics_adapter).await?;
    let registrations = group_registrations(request, ca, &groups);
    super::apply_all(client, &registrations).await?;
    for manifest in manifests.iter().chain(&registrations) {
        writeln!(out, "{} applied", display_name(manifest))?;
    }
    if wait {
        super::wait_for_aggregation(client, &groups).await?;
    }
    super::stored_kind_migration::remove_unused(client, out).await
}

/// Unregisters all clusters and deletes Crowsnest's objects in them; `timeout` applies to each cluster. Writes one line
/// per cluster to `out`.
async fn remove_clusters(
    client: &kube::Client,
    timeout: Duration,
    dry_run: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let clusters = uninstall::list_removals(client)
        .await
        .context("cannot list the Clusters; `crowsnest serve` must be running")?;
    for cluster in &clusters {
        let uninstall::ClusterRemoval { name, deleted_works, kept_works, .. } = cluster;
        let works = format!("Works whose objects are deleted: {deleted_works}, kept: {kept_works}");
        if dry_run {
            writeln!(out, "cluster({name}) would be removed. {works}")?;
            for object in cluster.join_objects() {
                writeln!(out, "cluster({name}): {object} would be deleted")?;
            }
        } else {
            let context = || {
                format!(
                    "cannot remove cluster {name}, so nothing was uninstalled; repair the cluster, or unregister it with `crowsnest unjoin {name} --force`, and try again"
                )
            };
            uninstall::remove_cluster(client, cluster, timeout).await.with_context(context)?;
            writeln!(out, "cluster({name}) removed. {works}")?;
        }
        if cluster.has_agent() {
            writeln!(out, "cluster({name}): its agent and the objects that the agent created are kept")?;
        }
    }
    Ok(())
}

/// Deletes the registrations through which the control plane calls Crowsnest. CRDs, namespaces and objects are kept. If
/// `cluster_timeout` is set, all clusters are unregistered first and Crowsnest's objects in them are deleted, within this
/// time per cluster.
pub async fn uninstall(
    client: &kube::Client,
    cluster_timeout: Option<Duration>,
    dry_run: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Some(record) = read_record(client).await? else {
        bail!("nothing is installed: there is no ConfigMap {SYSTEM_NAMESPACE}/{RECORD_CONFIG_MAP}")
    };
    if let Some(timeout) = cluster_timeout {
        remove_clusters(client, timeout, dry_run, out).await?;
    }
    let mut removals = Vec::new();
    for service in
        registered_api_services(client).await?.into_iter().filter(|service| foreign_server(service).is_none())
    {
        removals.push(object("apiregistration.k8s.io/v1", "APIService", "", &service.name_any()));
    }
    for manifest in super::admission_manifests(&record.webhook_base_url(), "") {
        if calls_crowsnest(client, &manifest, &record.webhook_base_url()).await? {
            removals.push(manifest);
        }
    }
    removals.push(object("v1", "Service", SYSTEM_NAMESPACE, super::SERVICE));
    let roles = super::base_manifests().into_iter();
    removals.extend(
        roles.filter(|role| role["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("crowsnest:"))),
    );
    removals.push(object("v1", "Secret", SYSTEM_NAMESPACE, serving::SECRET));
    let mut kept_definitions = Vec::new();
    if cluster_timeout.is_some() {
        let leftovers = super::stored_kind_migration::read_leftovers(client, dry_run).await?;
        removals.extend(leftovers.removable);
        kept_definitions = leftovers.kept;
        if !dry_run {
            super::stored_kind_migration::release_copied_objects(client).await?;
        }
    }
    // Deleted last, so that an interrupted uninstallation can be repeated.
    removals.push(record.manifest());
    for manifest in &removals {
        if !dry_run {
            delete(client, manifest).await?;
        }
        writeln!(out, "{} {}", display_name(manifest), if dry_run { "would be deleted" } else { "deleted" })?;
    }
    for (name, objects) in kept_definitions {
        writeln!(out, "customresourcedefinition/{name} kept, {objects} objects exist")?;
    }
    match cluster_timeout {
        Some(_) => writeln!(out, "public CRDs and policies are kept")?,
        None => writeln!(out, "CRDs, Clusters, policies and all objects in member clusters are kept")?,
    }
    Ok(())
}

fn object(version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn display_name(manifest: &Value) -> String {
    let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("/kind").to_ascii_lowercase(), text("/metadata/name"))
}

/// True for webhook configurations and admission policies.
pub fn is_admission_manifest(manifest: &Value) -> bool {
    manifest["apiVersion"] == "admissionregistration.k8s.io/v1"
}

/// Reads an object. `None` if it does not exist.
pub async fn read(client: &kube::Client, manifest: &Value) -> anyhow::Result<Option<Value>> {
    let path = api_path(manifest)?;
    match client.request(Request::get(&path).body(Vec::new())?).await {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {path}")),
    }
}

/// Deletes an object; succeeds if it does not exist.
pub async fn delete(client: &kube::Client, manifest: &Value) -> anyhow::Result<()> {
    let path = api_path(manifest)?;
    match client.request::<Value>(Request::delete(&path).body(Vec::new())?).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot delete {path}")),
    }
}

/// Returns true if a webhook configuration calls Crowsnest. Karmada's configurations have the same names.
async fn calls_crowsnest(client: &kube::Client, manifest: &Value, webhooks: &str) -> anyhow::Result<bool> {
    let found = read(client, manifest).await?;
    let hooks = found.as_ref().and_then(|found| found["webhooks"].as_array()).into_iter().flatten();
    let mut urls = hooks.map(|hook| hook.pointer("/clientConfig/url").and_then(Value::as_str).unwrap_or_default());
    Ok(urls.any(|url| url.starts_with(webhooks)))
}

/// All APIServices of the groups that Crowsnest can serve.
pub async fn registered_api_services(client: &kube::Client) -> anyhow::Result<Vec<APIService>> {
    let services = Api::<APIService>::all(client.clone());
    let mut found = Vec::new();
    for name in aggregated_groups(true).flat_map(super::api_service_names) {
        let result = services.get_opt(&name).await;
        found.extend(result.map_err(|source| InstallError::Registration { name, source })?);
    }
    Ok(found)
}

/// APIServices of Karmada's stored groups that another server serves, each with a description of that server.
pub async fn foreign_api_services(client: &kube::Client) -> anyhow::Result<Vec<(String, String)>> {
    let is_stored_group = |service: &APIService| {
        let group = service.spec.as_ref().and_then(|spec| spec.group.as_deref());
        matches!(group, Some("cluster.karmada.io" | "search.karmada.io"))
    };
    let services = registered_api_services(client).await?.into_iter().filter(is_stored_group);
    Ok(services.filter_map(|service| Some((service.name_any(), foreign_server(&service)?))).collect())
}

/// Returns an error unless the versions differ by at most one minor version.
fn check_version_skew(installed: &str, current: &str) -> Result<(), String> {
    let parts = |version: &str| {
        let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<i64>().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    let invalid = |version: &str| format!("{version:?} is not a version such as 1.2.3");
    let (old, new) =
        (parts(installed).ok_or_else(|| invalid(installed))?, parts(current).ok_or_else(|| invalid(current))?);
    if old.0 == new.0 && (old.1 - new.1).abs() <= 1 {
        return Ok(());
    }
    let step = if old < new { 1 } else { -1 };
    let next = match old.0 == new.0 {
        true => format!("; install {}.{} in between", old.0, old.1 + step),
        false => String::new(),
    };
    Err(format!(
        "version {installed} is installed and this is {current}: upgrades and downgrades must not skip a minor version{next}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0.1.0", "0.1.0", None)]
    #[case("0.1.7", "0.2.0", None)]
    #[case::downgrade("0.2.0", "0.1.7", None)]
    #[case("0.1.0", "0.3.0-rc.1", Some("install 0.2 in between"))]
    #[case("0.4.0", "0.1.0", Some("install 0.3 in between"))]
    #[case("1.0.0", "0.9.0", Some("1.0.0 is installed and this is 0.9.0"))]
    #[case("newest", "0.1.0", Some("\"newest\" is not a version"))]
    fn upgrades_and_downgrades_do_not_skip_minor_versions(
        #[case] installed: &str,
        #[case] current: &str,
        #[case] reason: Option<&str>,
    ) {
        let error = check_version_skew(installed, current).err();
        assert_eq!(error.is_some(), reason.is_some(), "{error:?}");
        assert!(error.zip(reason).is_none_or(|(message, reason)| message.contains(reason)));
    }

    #[rstest]
    #[case("crowsnest.example.com", "https://crowsnest.example.com:8443/webhooks")]
    #[case("fd00::7", "https://[fd00::7]:8443/webhooks")]
    fn records_round_trip(#[case] host: &str, #[case] webhooks: &str) {
        let record = Record::new(host.to_owned(), 8443, false);
        let map: ConfigMap = serde_json::from_value(record.manifest()).unwrap();
        assert_eq!(Record::from_config_map(&map).unwrap(), record);
        assert_eq!(record.webhook_base_url(), webhooks);
    }

    #[test]
    fn webhooks_can_have_another_endpoint() {
        let endpoint = Some(("10.0.0.8".to_owned(), 9443));
        let record = Record { webhook_endpoint: endpoint, ..Record::new("10.0.0.7".to_owned(), 8443, false) };
        let map: ConfigMap = serde_json::from_value(record.manifest()).unwrap();
        assert_eq!(Record::from_config_map(&map).unwrap(), record);
        assert_eq!(record.webhook_base_url(), "https://10.0.0.8:9443/webhooks");
        assert_eq!(record.extra_host_names(), ["10.0.0.7", "10.0.0.8"]);
    }

    #[test]
    fn all_manifests_have_a_path_and_namespaces_are_first() {
        let secret = serving::issue_or_renew(None, &["localhost"], Timestamp::now()).unwrap();
        let advertised_endpoint = Some(("https://cp".to_owned(), "pem".to_owned()));
        let record = Record::new("localhost".to_owned(), 8443, true);
        let request = InstallRequest { record, ca: None, take_over: false, advertised_endpoint };
        let manifests = prerequisites(&request, &secret.authority.certificate, Some(&secret));
        assert_eq!(display_name(&manifests[0]), "namespace/karmada-system");
        let paths: Vec<String> = manifests.iter().map(|manifest| api_path(manifest).unwrap()).collect();
        assert!(paths.contains(&"/api/v1/namespaces/karmada-system/secrets/crowsnest-serving".to_owned()), "{paths:?}");
        assert_eq!(manifests.iter().filter(|manifest| is_admission_manifest(manifest)).count(), 5);
    }

    #[test]
    fn certificates_are_printed_as_pem() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let secret = serving::issue_or_renew(None, &["localhost"], Timestamp::now()).unwrap();
        let der = CertificateDer::from_pem_slice(secret.leaf.certificate.as_bytes()).unwrap();
        let read = CertificateDer::from_pem_slice(certificates_as_pem(&[der.to_vec()]).as_bytes()).unwrap();
        assert_eq!(read, der);
    }
}
