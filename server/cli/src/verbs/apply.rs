//! `crowsnest apply`: applies manifests to the control plane by server-side apply. With `--clusters` it also applies a
//! policy per object, named as by `karmadactl apply`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use crowsnest_api::names::policy_name;
use crowsnest_apimachinery::names::Gvk;
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_members::{ApiResource, ApiResources};
use kube::client::Body;
use serde_json::{Value, json};

use super::get::requests::{self, send_request, warnings};
use super::plan::set_namespace;
use crate::clients::{self, explain_failure};
use crate::connection::ConnectionArgs;
use crate::object::text;
use crate::output::Format;
use crate::output::terminal;
use crate::sources::SourceArgs;
use prune::{AppliedObjects, PruneArgs};

mod prune;

const POLICY_API_VERSION: &str = "policy.karmada.io/v1alpha1";
/// Group suffix of the control plane's own kinds, which are not propagated.
const KARMADA_GROUP_SUFFIX: &str = ".karmada.io";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Persist the changes
    None,
    /// Send no request that changes objects
    Client,
    /// Send dry-run requests to the control plane
    Server,
}

/// Validation of fields that the kind does not have (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Validation {
    #[value(alias = "true")]
    Strict,
    Warn,
    #[value(alias = "false")]
    Ignore,
}

impl Validation {
    /// The value in the API.
    fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::Warn => "Warn",
            Self::Ignore => "Ignore",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest apply -f web.yaml                        to the control plane only",
    "crowsnest apply -f web.yaml -C member1,member2     and propagate it",
    "crowsnest apply -f manifests/ -R --all-clusters --dry-run=server",
    "crowsnest apply -k overlays/prod --all-clusters",
    "crowsnest apply -f shop/ -l app=shop --prune       and delete what is no longer in the files",
    "crowsnest plan -f web.yaml                         preview the effect on the fleet",
])]
pub struct ApplyArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// Label selector that limits the objects in the files
    #[arg(short = 'l', long, visible_alias = "labels")]
    selector: Option<String>,
    /// Namespace of objects that name none [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Clusters to propagate each object to, separated by commas
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Propagate each object to all clusters
    #[arg(long, conflicts_with = "clusters")]
    all_clusters: bool,
    /// Preview only: none (write), client (send no write request) or server (send dry-run requests)
    #[arg(long, value_enum, default_value = "none", num_args = 0..=1, default_missing_value = "client", require_equals = true)]
    dry_run: DryRun,
    /// Take over fields that other managers own
    #[arg(long)]
    force_conflicts: bool,
    /// Accepted for compatibility with kubectl; apply is always server-side
    #[arg(long, hide = true)]
    server_side: bool,
    /// Accepted for compatibility with kubectl; only --force-conflicts takes over fields
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    overwrite: Option<bool>,
    /// Accepted for compatibility with kubectl; the server merges by its own schemas
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    openapi_patch: Option<bool>,
    /// Rejected, as kubectl rejects it with --server-side
    #[arg(long, hide = true)]
    force: bool,
    #[command(flatten)]
    prune: PruneArgs,
    /// Validation of unknown fields: strict (reject), warn or ignore
    #[arg(long, value_enum, default_value = "strict", num_args = 0..=1, default_missing_value = "strict", require_equals = true, hide_short_help = true)]
    validate: Validation,
    /// Subresource to apply instead of the object, such as status
    #[arg(long, value_name = "SUBRESOURCE", hide_short_help = true)]
    subresource: Option<String>,
    /// Name of the field manager
    #[arg(long, default_value = "crowsnest-apply", value_name = "NAME")]
    field_manager: String,
    /// Output format: json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE [default: one line per object]
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::parse_for_object)]
    output: Option<Format>,
    /// Show metadata.managedFields in JSON and YAML
    #[arg(long, hide_short_help = true)]
    show_managed_fields: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Sends write requests for manifests with common options.
pub(crate) struct ManifestWriter<'a> {
    pub(crate) client: &'a kube::Client,
    pub(crate) dry_run: DryRun,
    pub(crate) force: bool,
    pub(crate) manager: &'a str,
    pub(crate) validation: Validation,
    /// The subresource to write instead of the object.
    pub(crate) subresource: Option<&'a str>,
}

pub(crate) async fn run(args: ApplyArgs) -> anyhow::Result<ExitCode> {
    if args.sources.is_empty() {
        bail!("must specify one of -f and -k");
    }
    if args.force {
        bail!(
            "--force cannot be used with server-side apply; delete the object, or take over its fields with --force-conflicts"
        );
    }
    let selector = args.selector.as_deref();
    let prune = args.prune.is_requested(selector)?;
    let mut objects = args.sources.objects().await?;
    if let Some(selector) = selector {
        let selector = Selector::parse(selector).map_err(|error| anyhow!("-l {selector}: {error}"))?;
        objects.retain(|object| selector.matches_with(|label| object["metadata"]["labels"][label].as_str()));
    }
    let config = args.connection.load_config().await?;
    let default = config.default_namespace.clone();
    let client = kube::Client::try_from(config)?;
    if !args.clusters.is_empty() {
        check_clusters_exist(&args.clusters, &requests::list_clusters(&client).await?)?;
    }
    let writer = ManifestWriter {
        client: &client,
        dry_run: args.dry_run,
        force: args.force_conflicts,
        manager: &args.field_manager,
        validation: args.validate,
        subresource: args.subresource.as_deref(),
    };
    let mut served = crowsnest_members::discovery::discover(&client).await?;
    let mut applied_objects = AppliedObjects::default();
    for mut object in objects {
        if find_resource(&served, &object).is_none() {
            // An earlier object may have been the CustomResourceDefinition of this one.
            served = crowsnest_members::discovery::discover(&client).await?;
        }
        set_namespace(&mut object, &served, args.namespace.as_deref(), &default)?;
        let mut manifests = vec![object.clone()];
        if (args.all_clusters || !args.clusters.is_empty()) && is_propagated(&object) {
            manifests.push(build_policy(&object, &args.clusters, false)?);
        }
        for object in manifests {
            let (mut applied, outcome) = writer.apply(&served, &object).await?;
            applied_objects.record(&applied);
            if !args.show_managed_fields
                && let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut)
            {
                metadata.remove("managedFields");
            }
            let name = display_name(&served, &applied);
            let mut out = io::stdout().lock();
            match &args.output {
                None => writeln!(out, "{name} {outcome}{}", writer.dry_run_suffix())?,
                Some(format) => format.print_next(&mut out, &applied, true, |_| name.clone())?,
            }
        }
    }
    if prune {
        args.prune.prune(&writer, &served, &applied_objects, selector).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check_clusters_exist(requested: &[String], existing: &[String]) -> anyhow::Result<()> {
    let missing: Vec<&str> = requested.iter().filter(|name| !existing.contains(name)).map(String::as_str).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => bail!("cluster {} does not exist; the clusters are {}", missing.join(", "), existing.join(", ")),
    }
}

fn is_propagated(object: &Value) -> bool {
    let group = text(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    !group.ends_with(KARMADA_GROUP_SUFFIX)
}

/// Builds the policy that propagates an object to the clusters, or to all clusters if the list is empty.
pub(crate) fn build_policy(object: &Value, clusters: &[String], dependencies: bool) -> anyhow::Result<Value> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
    let gvk = Gvk::parse(api_version, kind).with_context(|| format!("{kind} {name}"))?;
    let mut selector = json!({"apiVersion": api_version, "kind": kind, "name": name});
    let mut metadata = json!({"name": policy_name(namespace, name, &gvk.to_string())});
    let policy_kind = match namespace {
        "" => "ClusterPropagationPolicy",
        namespace => {
            selector["namespace"] = namespace.into();
            metadata["namespace"] = namespace.into();
            "PropagationPolicy"
        }
    };
    let affinity = if clusters.is_empty() { json!({}) } else { json!({"clusterNames": clusters}) };
    let mut spec = json!({"resourceSelectors": [selector], "placement": {"clusterAffinity": affinity}});
    if dependencies {
        spec["propagateDeps"] = true.into();
    }
    Ok(json!({"apiVersion": POLICY_API_VERSION, "kind": policy_kind, "metadata": metadata, "spec": spec}))
}

fn find_resource<'s>(served: &'s ApiResources, object: &Value) -> Option<&'s ApiResource> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    served.resources.iter().find(|resource| resource.kind == kind && resource.gvr.api_version() == api_version)
}

/// The collection path of an object's resource.
pub(crate) fn collection_path(served: &ApiResources, object: &Value) -> anyhow::Result<String> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let resource = find_resource(served, object);
    let resource = resource.ok_or_else(|| anyhow!("no matches for kind {kind:?} in version {api_version:?}"))?;
    Ok(resource.gvr.path(resource.namespaced.then(|| text(object, "/metadata/namespace"))))
}

/// The object's name on the command line, such as `deployment.apps/web`.
pub(crate) fn display_name(served: &ApiResources, object: &Value) -> String {
    let group =
        find_resource(served, object).map(|resource| resource.gvr.group.to_string()).filter(|group| !group.is_empty());
    let group = group.map(|group| format!(".{group}")).unwrap_or_default();
    format!("{}{group}/{}", text(object, "/kind").to_lowercase(), text(object, "/metadata/name"))
}

impl ManifestWriter<'_> {
    pub(crate) fn dry_run_suffix(&self) -> &'static str {
        match self.dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        }
    }

    /// Applies an object; returns the result and `created`, `configured` or `unchanged`, as kubectl prints it.
    async fn apply(&self, served: &ApiResources, object: &Value) -> anyhow::Result<(Value, &'static str)> {
        let path = format!("{}/{}", collection_path(served, object)?, path_segment(text(object, "/metadata/name")));
        let before = self.read(&path).await?;
        if self.dry_run == DryRun::Client {
            let outcome = if before.is_some() { "configured" } else { "created" };
            return Ok((object.clone(), outcome));
        }
        let dry_run = if self.dry_run == DryRun::Server { "&dryRun=All" } else { "" };
        let (force, validation) = (self.force, self.validation.as_str());
        let subresource = self.subresource.map(|name| format!("/{}", path_segment(name))).unwrap_or_default();
        let query = format!(
            "fieldManager={}&force={force}&fieldValidation={validation}{dry_run}",
            percent_encode(self.manager)
        );
        let request = http::Request::patch(format!("{path}{subresource}?{query}"))
            .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(serde_json::to_vec(object)?))?;
        let applied: Value = match self.send(request).await {
            Ok(applied) => applied,
            Err(kube::Error::Api(status)) if status.code == 409 && !force => {
                bail!(
                    "cannot apply {}: {}; use --force-conflicts to take over these fields",
                    display_name(served, object),
                    status.message
                )
            }
            Err(error) => bail!("cannot apply {}: {}", display_name(served, object), explain_failure(None, &error)),
        };
        let version = |object: &Value| text(object, "/metadata/resourceVersion").to_owned();
        let outcome = match &before {
            None => "created",
            Some(before) if is_unchanged(before, &applied) || version(before) == version(&applied) => "unchanged",
            Some(_) => "configured",
        };
        Ok((applied, outcome))
    }

    /// Sends a request and prints the server's warnings to standard error.
    async fn send(&self, request: http::Request<Body>) -> Result<Value, kube::Error> {
        let (object, headers) = send_request(self.client, request).await?;
        for warning in warnings(&headers) {
            // Warnings are best effort: a closed standard error must not fail the request.
            let _ = writeln!(terminal::stderr(), "warning: {warning}");
        }
        Ok(object)
    }

    pub(crate) async fn read(&self, path: &str) -> anyhow::Result<Option<Value>> {
        clients::find(self.client, None, path).await
    }
}

/// Compares two objects without managed fields and resourceVersion; an apply that changes nothing else is reported as
/// unchanged.
fn is_unchanged(before: &Value, after: &Value) -> bool {
    let comparable = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
        }
        object
    };
    comparable(before) == comparable(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_match_karmadactl() {
        let deployment =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}});
        let manifest = build_policy(&deployment, &["m1".to_owned()], true).unwrap();
        let expected = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": policy_name("shop", "web", "apps/v1, Kind=Deployment"), "namespace": "shop"},
            "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}}, "propagateDeps": true,
                "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "shop"}]}});
        assert_eq!(manifest, expected);
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}});
        let manifest = build_policy(&role, &[], false).unwrap();
        assert_eq!(manifest["kind"], "ClusterPropagationPolicy");
        assert_eq!(manifest["spec"]["placement"], json!({"clusterAffinity": {}}));
        assert!(is_propagated(&role) && !is_propagated(&manifest));
    }

    #[test]
    fn unknown_clusters_are_rejected() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(check_clusters_exist(&names(&["m1"]), &names(&["m1", "m2"])).is_ok());
        let error = check_clusters_exist(&names(&["m1", "m3"]), &names(&["m1", "m2"])).unwrap_err();
        assert_eq!(error.to_string(), "cluster m3 does not exist; the clusters are m1, m2");
    }
}
