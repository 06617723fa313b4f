//! `crowsnest doctor`: checks an installation and reports problems with their solutions. It changes nothing; expected
//! objects are computed by a server-side dry run.
//!
//! Run with the kubeconfig of `serve`, it checks the permissions of `serve`.

mod certificates;
mod checks;
mod graph_sinks;
mod permissions;
mod tls_chains;

use anyhow::Context;
use crowsnest_api::role::Role;
use futures::stream::{self, StreamExt, TryStreamExt};
use http::{Request, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use kube::client::Body;
use serde_json::{Value, json};

use crate::installation::{self, InstallRequest, Record};
use crate::serving::{self, ServingSecret};
use crate::{SERVICE_HOST, SYSTEM_NAMESPACE, stored_kind_migration};
pub use checks::{Finding, Severity};
use crowsnest_api::names::LEASES;

/// Maximum number of concurrent access reviews.
const MAX_CONCURRENT_REVIEWS: usize = 16;

/// Runs all checks; the findings are not sorted.
pub async fn examine(config: kube::Config, roles: &[Role]) -> anyhow::Result<Vec<Finding>> {
    let client_finding = tls_chains::client_certificate(&config)
        .await?
        .map(|chain| certificates::check_client_certificate(&chain, Timestamp::now()));
    match (run_checks(&kube::Client::try_from(config)?, roles).await, client_finding) {
        (Ok(mut findings), client_finding) => {
            findings.extend(client_finding);
            Ok(findings)
        }
        // An invalid client certificate explains why the control plane refused the request.
        (Err(error), Some(client_finding)) if client_finding.severity == Severity::Broken => {
            let finding = Finding::broken("control plane", format!("{error:#}"), "fix the client certificate first");
            Ok(vec![client_finding, finding])
        }
        (Err(error), _) => Err(error),
    }
}

async fn run_checks(client: &kube::Client, roles: &[Role]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = check_control_plane(client).await.context("cannot read from the control plane")?;
    findings.extend(check_permissions(client, roles).await?);
    findings.push(check_front_proxy_ca(client).await?);
    let Some(record) = installation::read_record(client).await? else {
        let fix = "run `crowsnest install --host HOST`";
        findings.push(Finding::broken("installation", "not installed", fix));
        return Ok(findings);
    };
    findings.push(Finding::good("installation", format!("{} at {}:{}", record.version, record.host, record.port)));
    let serving_secret = match serving::read_secret(client).await {
        // Reported by the check of permissions.
        Err(error) if is_forbidden(&error) => None,
        secret => secret?,
    };
    let ca_bundle = read_ca_bundle(client, &record).await?;
    findings.extend(check_serving_certificate(&record, serving_secret.as_ref(), ca_bundle.as_deref()).await?);
    findings.extend(check_installed_objects(client, &record, serving_secret.is_some(), ca_bundle).await?);
    findings.extend(check_earlier_definitions(client).await?);
    findings.extend(check_registrations(client, &record).await?);
    findings.push(check_leader(client).await?);
    findings.extend(check_members(client).await?);
    findings.extend(check_search_index(client).await?);
    findings.extend(graph_sinks::check_graph_sinks(client).await?);
    Ok(findings)
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 403)
}

/// Checks connectivity, version and clock of the control plane.
async fn check_control_plane(client: &kube::Client) -> Result<Vec<Finding>, kube::Error> {
    let sent = Timestamp::now();
    let request = Request::get("/version").body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    let received = Timestamp::now();
    let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    let body = response.into_body().collect().await?.to_bytes();
    let version: Value = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
    let text = |field: &str| version[field].as_str().unwrap_or_default();
    let mut findings = vec![checks::check_version(text("minor"), text("gitVersion"))];
    let server_time = date.as_deref().and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    findings.extend(server_time.map(|server_time| checks::check_clocks(sent, server_time.timestamp(), received)));
    Ok(findings)
}

/// Checks for CustomResourceDefinitions with their earlier names.
async fn check_earlier_definitions(client: &kube::Client) -> anyhow::Result<Option<Finding>> {
    let names = match stored_kind_migration::earlier_definition_names(client).await {
        // Reported with the missing permissions.
        Err(error) if is_forbidden(&error) => return Ok(None),
        names => names?,
    };
    let fix = "upgrade all replicas to this version, then run `crowsnest install`";
    let text = || format!("{} of an earlier version remain", names.join(", "));
    Ok((!names.is_empty()).then(|| Finding::warning("internal definitions", text(), fix)))
}

async fn check_permissions(client: &kube::Client, roles: &[Role]) -> anyhow::Result<Vec<Finding>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let requests = stream::iter(permissions::required_permissions(roles)).map(|permission| {
        let reviews = &reviews;
        async move {
            let spec = SelfSubjectAccessReviewSpec {
                resource_attributes: Some(permission.attributes()),
                ..SelfSubjectAccessReviewSpec::default()
            };
            let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
            let response =
                reviews.create(&PostParams::default(), &review).await.context("cannot review the permissions")?;
            let allowed = response.status.is_some_and(|status| status.allowed);
            Ok::<_, anyhow::Error>((!allowed).then_some(permission))
        }
    });
    let reviewed: Vec<_> = requests.buffered(MAX_CONCURRENT_REVIEWS).try_collect().await?;
    Ok(permissions::report_missing(&reviewed.into_iter().flatten().collect::<Vec<_>>()))
}

/// Checks the front proxy's CA in the control plane.
async fn check_front_proxy_ca(client: &kube::Client) -> anyhow::Result<Finding> {
    const NAME: &str = "extension-apiserver-authentication";
    let subject = format!("ConfigMap kube-system/{NAME}");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "kube-system"}});
    let found = installation::read(client, &map).await?;
    let data = |key: &str| found.as_ref().and_then(|map| map.pointer(&format!("/data/{key}")));
    let authority = data("requestheader-client-ca-file");
    Ok(match authority {
        Some(_) if authority == data("client-ca-file") => Finding::warning(
            subject,
            "users and front proxies share a CA: a user certificate with a front proxy's name could impersonate any user",
            "start kube-apiserver with a separate --requestheader-client-ca-file",
        ),
        Some(_) => Finding::good(subject, "it contains the front proxy's CA"),
        None => Finding::broken(
            subject,
            "it contains no front-proxy CA, so requests through the aggregation layer are rejected",
            "start kube-apiserver with --requestheader-client-ca-file and the related flags",
        ),
    })
}

/// Checks the certificates that `serve` presents to the control plane, for the names of the webhooks and of the
/// aggregated APIs.
async fn check_serving_certificate(
    record: &Record,
    serving_secret: Option<&ServingSecret>,
    ca_bundle: Option<&str>,
) -> anyhow::Result<Vec<Finding>> {
    let (address, webhook) = ((record.host.as_str(), record.port), record.webhook());
    let mut chains = Vec::new();
    for (endpoint, name) in [(webhook, webhook.0), (address, SERVICE_HOST)] {
        let chain = tls_chains::fetch_chain(endpoint, name).await;
        chains.push((name, chain.map_err(|error| format!("{error:#}"))));
    }
    // If `serve` is unreachable from here, check the installed certificate instead.
    if let (Some(secret), true) = (serving_secret, chains.iter().all(|(_, chain)| chain.is_err())) {
        let installed_chain = tls_chains::parse_chain(secret.leaf.certificate.as_bytes())
            .context("cannot parse the certificate in Secret crowsnest-serving")?;
        chains.extend([(webhook.0, Ok(installed_chain.clone())), (SERVICE_HOST, Ok(installed_chain))]);
    }
    let ca_bundle = ca_bundle.filter(|pem| !pem.is_empty()).map(|pem| tls_chains::parse_chain(pem.as_bytes()));
    let authorities = ca_bundle.transpose().context("cannot parse the webhooks' caBundle")?.unwrap_or_default();
    let presented = certificates::PresentedCertificates {
        address: &format!("{}:{}", record.host, record.port),
        chains: &chains,
        authorities: &authorities,
        is_issued_by_install: serving_secret.is_some(),
    };
    Ok(certificates::check_serving(&presented, Timestamp::now()))
}

/// Compares the installed objects with those that this version would install.
async fn check_installed_objects(
    client: &kube::Client,
    record: &Record,
    has_serving_secret: bool,
    ca_bundle: Option<String>,
) -> anyhow::Result<Vec<Finding>> {
    // Without an installed certificate, the CA is that of the webhooks.
    let ca = (!has_serving_secret).then(|| ca_bundle.unwrap_or_default());
    let request =
        InstallRequest { record: record.with_current_version(), ca, take_over: false, advertised_endpoint: None };
    let mut findings = Vec::new();
    let manifests = installation::render(client, &request).await?;
    for manifest in &manifests {
        let name = format!(
            "{} {}",
            manifest["kind"].as_str().unwrap_or_default(),
            manifest.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
        );
        let live = installation::read(client, manifest).await?;
        match crate::dry_run_apply(client, manifest).await {
            Ok(expected) => findings.extend(checks::check_drift(&name, live.as_ref(), &expected)),
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                findings.push(Finding::broken(name, error, "run `crowsnest install` with sufficient permissions"));
            }
        }
    }
    if findings.is_empty() {
        findings
            .push(Finding::good("installed objects", format!("all {} equal those of this version", manifests.len())));
    }
    Ok(findings)
}

/// The CA bundle of the webhooks.
async fn read_ca_bundle(client: &kube::Client, record: &Record) -> anyhow::Result<Option<String>> {
    use base64::Engine;
    for manifest in crate::admission_manifests(&record.webhook_base_url(), "") {
        let found = installation::read(client, &manifest).await?;
        let bundle = found.as_ref().and_then(|found| found.pointer("/webhooks/0/clientConfig/caBundle")?.as_str());
        if let Some(bundle) = bundle {
            let pem = base64::engine::general_purpose::STANDARD
                .decode(bundle)
                .context("cannot decode the webhooks' caBundle")?;
            return Ok(Some(String::from_utf8(pem).context("cannot decode the webhooks' caBundle")?));
        }
    }
    Ok(None)
}

async fn check_registrations(client: &kube::Client, record: &Record) -> anyhow::Result<Vec<Finding>> {
    let address = format!("{}:{}", record.host, record.port);
    let mut findings = Vec::new();
    for (name, server) in installation::foreign_api_services(client).await? {
        let fix = "run `crowsnest migrate` and `crowsnest install --take-over`";
        findings.push(Finding::broken(format!("APIService {name}"), format!("it is served by {server}"), fix));
    }
    for service in installation::registered_api_services(client).await? {
        let service = serde_json::to_value(service)?;
        findings.push(checks::check_registration(&service, &address));
    }
    Ok(findings)
}

async fn check_leader(client: &kube::Client) -> anyhow::Result<Finding> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let mut found = Vec::new();
    for name in LEASES {
        found.push((name, leases.get_opt(name).await.with_context(|| format!("cannot read Lease {name}"))?));
    }
    Ok(checks::check_leases(&found, Timestamp::now()))
}

async fn check_search_index(client: &kube::Client) -> anyhow::Result<Vec<Finding>> {
    let request = Request::get("/apis/search.crowsnest.io/v1alpha1/index").body(Vec::new())?;
    Ok(match client.request::<Value>(request).await {
        Ok(index) => checks::check_search_index(&index),
        Err(error) => {
            let fix = "fix the APIService v1alpha1.search.crowsnest.io, or run doctor with the kubeconfig of `serve`";
            vec![Finding::warning("search index", format!("cannot read its state: {error}"), fix)]
        }
    })
}

async fn check_members(client: &kube::Client) -> anyhow::Result<Vec<Finding>> {
    let request = Request::get("/apis/cluster.karmada.io/v1alpha1/clusters").body(Vec::new())?;
    let list: Value = match client.request(request).await {
        Ok(list) => list,
        Err(error) => {
            let fix = "fix the APIService v1alpha1.cluster.karmada.io first";
            return Ok(vec![Finding::broken("clusters", format!("cannot list them: {error}"), fix)]);
        }
    };
    let clusters: Vec<Finding> = list["items"].as_array().into_iter().flatten().map(checks::check_member).collect();
    Ok(match clusters.is_empty() {
        true => vec![Finding::good("clusters", "no clusters; add clusters with `crowsnest join`")],
        false => clusters,
    })
}
