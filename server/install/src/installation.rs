//! An installation as a whole: what `serve` needs in the control plane it serves, in which order, and the ConfigMap that says what
//! was installed. Written by `crowsnest install` and `uninstall`; read by them and by `doctor`.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_api::aggregated_groups::{ApiGroup, aggregated_groups};
use crowsnest_members::clear;
use crowsnest_members::join::certificates_as_pem;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::serving::{self, Kept};
use super::{Endpoints, InstallError, SYSTEM_NAMESPACE, others, path_of};

/// The ConfigMap.
const RECORD: &str = "crowsnest-installed";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How the control plane reaches `serve`, and what is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub version: String,
    pub host: String,
    pub port: u16,
    /// Host and port of the role webhook, where that is elsewhere.
    pub webhooks_at: Option<(String, u16)>,
    pub metrics_adapter: bool,
}

impl Record {
    pub fn new(host: String, port: u16, metrics_adapter: bool) -> Self {
        Self { version: VERSION.to_owned(), host, port, webhooks_at: None, metrics_adapter }
    }

    /// The same, as this version would install it.
    pub fn anew(&self) -> Self {
        Self { version: VERSION.to_owned(), ..self.clone() }
    }

    /// Host and port at which webhooks are called.
    pub fn webhook(&self) -> (&str, u16) {
        self.webhooks_at.as_ref().map_or((self.host.as_str(), self.port), |(host, port)| (host.as_str(), *port))
    }

    /// By which names it is called, beside those of its Service.
    fn hosts(&self) -> Vec<&str> {
        let mut hosts = vec![self.host.as_str(), self.webhook().0];
        hosts.dedup();
        hosts
    }

    /// Where webhooks are called.
    pub fn webhooks(&self) -> String {
        let (host, port) = self.webhook();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("https://{host}:{port}/webhooks")
    }

    fn manifest(&self) -> Value {
        let mut data = json!({"version": self.version, "host": self.host, "port": self.port.to_string(),
            "metricsAdapter": self.metrics_adapter.to_string()});
        if let Some((host, port)) = &self.webhooks_at {
            data["webhookHost"] = host.as_str().into();
            data["webhookPort"] = port.to_string().into();
        }
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": RECORD, "namespace": SYSTEM_NAMESPACE},
            "data": data,
        })
    }

    fn of(map: &ConfigMap) -> anyhow::Result<Self> {
        let text = |key: &str| {
            let found = map.data.as_ref().and_then(|data| data.get(key));
            found.cloned().with_context(|| format!("ConfigMap {SYSTEM_NAMESPACE}/{RECORD} has no {key}"))
        };
        let port =
            |key: &str| text(key)?.parse().with_context(|| format!("{key} of ConfigMap {SYSTEM_NAMESPACE}/{RECORD}"));
        let webhooks_at = text("webhookHost").ok().map(|host| anyhow::Ok((host, port("webhookPort")?))).transpose()?;
        Ok(Self {
            version: text("version")?,
            host: text("host")?,
            port: port("port")?,
            webhooks_at,
            metrics_adapter: text("metricsAdapter")? == "true",
        })
    }
}

/// What was installed, if anything was.
pub async fn recorded(client: &kube::Client) -> anyhow::Result<Option<Record>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = maps.get_opt(RECORD).await.with_context(|| format!("reading ConfigMap {SYSTEM_NAMESPACE}/{RECORD}"))?;
    found.map(|map| Record::of(&map)).transpose()
}

/// Requested installation.
pub struct Wish {
    pub record: Record,
    /// PEM of the authority of `serve`'s certificate, where `install` is not to make one.
    pub ca: Option<String>,
    /// Groups that somebody else serves become ours.
    pub take_over: bool,
    /// The control plane as its clients reach it: address, and authority as PEM.
    pub advertised: Option<(String, String)>,
}

/// What agents are told of the control plane: as we told it before, else nothing where somebody has told it, else as we reach it.
pub async fn advertised(client: &kube::Client, config: &kube::Config) -> anyhow::Result<Option<(String, String)>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    match maps.get_opt("cluster-info").await.context("reading ConfigMap kube-public/cluster-info")? {
        Some(map) => super::agents::told(&map),
        None => {
            let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
            Ok(config.root_cert.as_deref().map(|ca| (server, certificates_as_pem(ca))))
        }
    }
}

/// What is applied before our groups are registered. The certificate, where it is kept there, comes with it.
fn first(wish: &Wish, ca: &str, kept: Option<&Kept>) -> Vec<Value> {
    let webhooks = wish.record.webhooks();
    let mut manifests = super::foundations();
    manifests.extend(kept.map(Kept::manifest));
    manifests.extend(super::definitions(&webhooks, ca));
    manifests.extend(super::admission(&webhooks, ca));
    if let Some((server, ca)) = &wish.advertised {
        manifests.extend(super::agents::cluster_info(server, ca));
    }
    manifests.push(wish.record.manifest());
    manifests
}

fn then(wish: &Wish, ca: String, groups: &[&ApiGroup]) -> Vec<Value> {
    super::aggregation(&Endpoints { host: wish.record.host.clone(), port: wish.record.port, ca }, groups)
}

/// What would be applied. A certificate that is not made yet has no authority to name.
pub async fn rendered(client: &kube::Client, wish: &Wish) -> anyhow::Result<Vec<Value>> {
    let ca = match &wish.ca {
        Some(ca) => ca.clone(),
        None => {
            let kept = serving::kept(client).await?;
            let mend = "no certificate has been made yet: name the authority of yours with --ca-file, or install without --dry-run";
            kept.context(mend)?.authority.certificate
        }
    };
    let left = |service: &APIService| others(service).map(|_| service.name_any());
    let left: Vec<String> = registered(client).await?.iter().filter_map(left).collect();
    // Of metrics what others serve is left to them.
    let groups = aggregated_groups(wish.record.metrics_adapter);
    let groups: Vec<&ApiGroup> =
        groups.filter(|group| !group.of_metrics || !super::names(group).any(|name| left.contains(&name))).collect();
    // Keys are not printed.
    let mut manifests = first(wish, &ca, None);
    manifests.extend(then(wish, ca, &groups));
    Ok(manifests)
}

/// Installs, or brings what is installed to this version; each object is told in a line.
pub async fn install(client: &kube::Client, wish: &Wish, wait: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(installed) = recorded(client).await? {
        may_follow(&installed.version, VERSION).map_err(anyhow::Error::msg)?;
    }
    let foreign = foreign(client).await?;
    if let (Some((name, by)), false) = (foreign.first(), wish.take_over) {
        bail!("{name} is served by {by}: run `crowsnest migrate` first, which takes over what is stored there");
    }
    let kept = match wish.ca {
        Some(_) => None,
        None => Some(serving::renewed(serving::kept(client).await?, &wish.record.hosts(), Timestamp::now())?),
    };
    let ca = wish.ca.clone().or_else(|| kept.as_ref().map(|kept| kept.authority.certificate.clone()));
    let ca = ca.context("no authority of the certificate")?;
    let manifests = first(wish, &ca, kept.as_ref());
    if !foreign.is_empty() {
        // Of theirs nothing may stay: webhooks of names that we do not have would be called in vain.
        for manifest in manifests.iter().filter(|manifest| is_admission(manifest)) {
            delete(client, manifest).await?;
        }
    }
    // Before webhooks are registered for the kinds that objects are copied to.
    super::stored_kind_migration::copy(client, out).await?;
    super::apply_all(client, &manifests).await?;
    // Ours are described by the kinds that keep them, so those have to be served first.
    let groups = super::groups(client, wish.record.metrics_adapter).await?;
    let registrations = then(wish, ca, &groups);
    super::apply_all(client, &registrations).await?;
    for manifest in manifests.iter().chain(&registrations) {
        writeln!(out, "{} applied", told(manifest))?;
    }
    if wait {
        super::aggregation_available(client, &groups).await?;
    }
    super::stored_kind_migration::remove_unread(client, out).await
}

/// Takes all clusters out, and what is ours out of them; each is told in a line.
async fn clear(client: &kube::Client, within: Duration, dry_run: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let leaving = clear::leaving(client).await.context("asking for clusters: `crowsnest serve` has to run")?;
    for cluster in &leaving {
        let clear::Leaving { name, taken, kept, .. } = cluster;
        let works = format!("{taken} Works with their objects and {kept} without");
        if dry_run {
            writeln!(out, "cluster({name}) would be taken out, {works}")?;
            for made in cluster.made() {
                writeln!(out, "cluster({name}): {made} would be deleted")?;
            }
        } else {
            let mend = || {
                format!(
                    "taking cluster {name} out; nothing is uninstalled: mend it, or let it go as it is with `crowsnest unjoin {name} --force`, and try again"
                )
            };
            clear::leave(client, cluster, within).await.with_context(mend)?;
            writeln!(out, "cluster({name}) taken out, {works}")?;
        }
        if cluster.has_agent() {
            writeln!(out, "cluster({name}): its agent and what that made stay there")?;
        }
    }
    Ok(())
}

/// Takes away what makes the control plane ask us. Definitions, namespaces and all objects stay, and so do members as they are, unless
/// they are to be left; `members` is how long each may take.
pub async fn uninstall(
    client: &kube::Client,
    members: Option<Duration>,
    dry_run: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let Some(record) = recorded(client).await? else {
        bail!("nothing is installed: there is no ConfigMap {SYSTEM_NAMESPACE}/{RECORD}")
    };
    if let Some(within) = members {
        clear(client, within, dry_run, out).await?;
    }
    let mut gone = Vec::new();
    for service in registered(client).await?.into_iter().filter(|service| others(service).is_none()) {
        gone.push(object("apiregistration.k8s.io/v1", "APIService", "", &service.name_any()));
    }
    for manifest in super::admission(&record.webhooks(), "") {
        if is_ours(client, &manifest, &record.webhooks()).await? {
            gone.push(manifest);
        }
    }
    gone.push(object("v1", "Service", SYSTEM_NAMESPACE, super::SERVICE));
    let roles = super::foundations().into_iter();
    gone.extend(
        roles.filter(|role| role["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("crowsnest:"))),
    );
    gone.push(object("v1", "Secret", SYSTEM_NAMESPACE, serving::SECRET));
    let mut kept = Vec::new();
    if members.is_some() {
        let leftovers = super::stored_kind_migration::leftovers(client, dry_run).await?;
        gone.extend(leftovers.removable);
        kept = leftovers.kept;
        if !dry_run {
            super::stored_kind_migration::release_copied(client).await?;
        }
    }
    // The last: until then it can be tried again.
    gone.push(record.manifest());
    for manifest in &gone {
        if !dry_run {
            delete(client, manifest).await?;
        }
        writeln!(out, "{} {}", told(manifest), if dry_run { "would be deleted" } else { "deleted" })?;
    }
    for (name, objects) in kept {
        writeln!(out, "customresourcedefinition/{name} kept: it has {objects} objects")?;
    }
    match members {
        Some(_) => writeln!(out, "public definitions and policies stay as they are")?,
        None => writeln!(out, "definitions, clusters, policies and everything in members stay as they are")?,
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

fn told(manifest: &Value) -> String {
    let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("/kind").to_ascii_lowercase(), text("/metadata/name"))
}

pub fn is_admission(manifest: &Value) -> bool {
    manifest["apiVersion"] == "admissionregistration.k8s.io/v1"
}

/// The object as it is; none where there is none.
pub async fn read(client: &kube::Client, manifest: &Value) -> anyhow::Result<Option<Value>> {
    let path = path_of(manifest)?;
    match client.request(Request::get(&path).body(Vec::new())?).await {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).with_context(|| format!("reading {path}")),
    }
}

pub async fn delete(client: &kube::Client, manifest: &Value) -> anyhow::Result<()> {
    let path = path_of(manifest)?;
    match client.request::<Value>(Request::delete(&path).body(Vec::new())?).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("deleting {path}")),
    }
}

/// Whether a webhook configuration calls us, and not Karmada, whose names it has.
async fn is_ours(client: &kube::Client, manifest: &Value, webhooks: &str) -> anyhow::Result<bool> {
    let found = read(client, manifest).await?;
    let hooks = found.as_ref().and_then(|found| found["webhooks"].as_array()).into_iter().flatten();
    let mut urls = hooks.map(|hook| hook.pointer("/clientConfig/url").and_then(Value::as_str).unwrap_or_default());
    Ok(urls.any(|url| url.starts_with(webhooks)))
}

/// All APIServices of groups that we can serve.
pub async fn registered(client: &kube::Client) -> anyhow::Result<Vec<APIService>> {
    let services = Api::<APIService>::all(client.clone());
    let mut found = Vec::new();
    for name in aggregated_groups(true).flat_map(super::names) {
        let read = services.get_opt(&name).await;
        found.extend(read.map_err(|source| InstallError::Registration { name, source })?);
    }
    Ok(found)
}

/// APIServices of what Karmada stores that somebody else serves, and who.
pub async fn foreign(client: &kube::Client) -> anyhow::Result<Vec<(String, String)>> {
    let stored = |service: &APIService| {
        let group = service.spec.as_ref().and_then(|spec| spec.group.as_deref());
        matches!(group, Some("cluster.karmada.io" | "search.karmada.io"))
    };
    let services = registered(client).await?.into_iter().filter(stored);
    Ok(services.filter_map(|service| Some((service.name_any(), others(&service)?))).collect())
}

/// A version may follow one that is a minor before or after it.
fn may_follow(installed: &str, ours: &str) -> Result<(), String> {
    let parts = |version: &str| {
        let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<i64>().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    let unreadable = |version: &str| format!("{version:?} is no version such as 1.2.3");
    let (before, now) =
        (parts(installed).ok_or_else(|| unreadable(installed))?, parts(ours).ok_or_else(|| unreadable(ours))?);
    if before.0 == now.0 && (before.1 - now.1).abs() <= 1 {
        return Ok(());
    }
    let step = if before < now { 1 } else { -1 };
    let next = match before.0 == now.0 {
        true => format!(", install {}.{} in between", before.0, before.1 + step),
        false => String::new(),
    };
    Err(format!("{installed} is installed, and this is {ours}: versions follow each other one minor at a time{next}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0.1.0", "0.1.0", None)]
    #[case("0.1.7", "0.2.0", None)]
    #[case::down_again("0.2.0", "0.1.7", None)]
    #[case("0.1.0", "0.3.0-rc.1", Some("install 0.2 in between"))]
    #[case("0.4.0", "0.1.0", Some("install 0.3 in between"))]
    #[case("1.0.0", "0.9.0", Some("1.0.0 is installed, and this is 0.9.0"))]
    #[case("newest", "0.1.0", Some("\"newest\" is no version"))]
    fn versions_follow_one_minor_at_a_time(#[case] installed: &str, #[case] ours: &str, #[case] why: Option<&str>) {
        let refused = may_follow(installed, ours).err();
        assert_eq!(refused.is_some(), why.is_some(), "{refused:?}");
        assert!(refused.zip(why).is_none_or(|(told, why)| told.contains(why)));
    }

    #[rstest]
    #[case("crowsnest.example.com", "https://crowsnest.example.com:8443/webhooks")]
    #[case("fd00::7", "https://[fd00::7]:8443/webhooks")]
    fn a_record_is_read_as_it_was_written(#[case] host: &str, #[case] webhooks: &str) {
        let record = Record::new(host.to_owned(), 8443, false);
        let map: ConfigMap = serde_json::from_value(record.manifest()).unwrap();
        assert_eq!(Record::of(&map).unwrap(), record);
        assert_eq!(record.webhooks(), webhooks);
    }

    #[test]
    fn webhooks_may_be_elsewhere() {
        let at = Some(("10.0.0.8".to_owned(), 9443));
        let record = Record { webhooks_at: at, ..Record::new("10.0.0.7".to_owned(), 8443, false) };
        let map: ConfigMap = serde_json::from_value(record.manifest()).unwrap();
        assert_eq!(Record::of(&map).unwrap(), record);
        assert_eq!(record.webhooks(), "https://10.0.0.8:9443/webhooks");
        assert_eq!(record.hosts(), ["10.0.0.7", "10.0.0.8"]);
    }

    #[test]
    fn everything_has_a_path_and_namespaces_come_first() {
        let kept = serving::renewed(None, &["localhost"], Timestamp::now()).unwrap();
        let advertised = Some(("https://cp".to_owned(), "pem".to_owned()));
        let record = Record::new("localhost".to_owned(), 8443, true);
        let wish = Wish { record, ca: None, take_over: false, advertised };
        let manifests = first(&wish, &kept.authority.certificate, Some(&kept));
        assert_eq!(told(&manifests[0]), "namespace/karmada-system");
        let paths: Vec<String> = manifests.iter().map(|manifest| path_of(manifest).unwrap()).collect();
        assert!(paths.contains(&"/api/v1/namespaces/karmada-system/secrets/crowsnest-serving".to_owned()), "{paths:?}");
        assert_eq!(manifests.iter().filter(|manifest| is_admission(manifest)).count(), 5);
    }

    #[test]
    fn certificates_are_printed_as_pem() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let kept = serving::renewed(None, &["localhost"], Timestamp::now()).unwrap();
        let der = CertificateDer::from_pem_slice(kept.own.certificate.as_bytes()).unwrap();
        let read = CertificateDer::from_pem_slice(certificates_as_pem(&[der.to_vec()]).as_bytes()).unwrap();
        assert_eq!(read, der);
    }
}
