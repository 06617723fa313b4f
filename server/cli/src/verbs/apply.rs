//! `crowsnest apply`: objects of files as they should be in the control plane, by server-side apply; with clusters also a policy for each,
//! named as `karmadactl apply` names it.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use crowsnest_api::names::policy_name;
use crowsnest_apimachinery::names::Gvk;
use crowsnest_apimachinery::request::{path_segment, percent_encoded};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_members::{ApiResource, ApiResources};
use kube::client::Body;
use serde_json::{Value, json};

use super::get::ask::{self, answered, warnings};
use super::plan::place;
use crate::connection::ConnectionArgs;
use crate::object::text;
use crate::output::Format;
use crate::output::terminal;
use crate::reach::{self, failure};
use crate::sources::SourceArgs;
use prune::{Applied, PruneArgs};

mod prune;

const POLICIES: &str = "policy.karmada.io/v1alpha1";
/// Kinds of these are for the control plane: nothing propagates them.
const OURS: &str = ".karmada.io";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Write
    None,
    /// Ask nobody to
    Client,
    /// Have the control plane look at it
    Server,
}

/// What becomes of fields that a kind does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Validation {
    #[value(alias = "true")]
    Strict,
    Warn,
    #[value(alias = "false")]
    Ignore,
}

impl Validation {
    /// As the API has it.
    fn word(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::Warn => "Warn",
            Self::Ignore => "Ignore",
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest apply -f web.yaml                        in the control plane alone\n  crowsnest apply -f web.yaml -C member1,member2     and a policy that puts it there\n  crowsnest apply -f manifests/ -R --all-clusters --dry-run=server\n  crowsnest apply -k overlays/prod --all-clusters\n  crowsnest apply -f shop/ -l app=shop --prune       and what was applied so before goes\n  crowsnest plan -f web.yaml                         what would become of the fleet"
)]
pub struct ApplyArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// Of the files' objects those with these labels
    #[arg(short = 'l', long, visible_alias = "labels")]
    selector: Option<String>,
    /// Of objects that say none [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Propagate each object to these clusters, by comma
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Propagate each object to all clusters
    #[arg(long, conflicts_with = "clusters")]
    all_clusters: bool,
    /// Write nothing: client asks nobody, server has the control plane look at it
    #[arg(long, value_enum, default_value = "none", num_args = 0..=1, default_missing_value = "client", require_equals = true)]
    dry_run: DryRun,
    /// Take fields over that others wrote
    #[arg(long)]
    force_conflicts: bool,
    /// As kubectl has it: it always is
    #[arg(long, hide = true)]
    server_side: bool,
    /// As kubectl has it: fields that others wrote are taken over by --force-conflicts alone
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    overwrite: Option<bool>,
    /// As kubectl has it: the server knows how its kinds are merged
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    openapi_patch: Option<bool>,
    /// As kubectl has it, which refuses it with --server-side
    #[arg(long, hide = true)]
    force: bool,
    #[command(flatten)]
    prune: PruneArgs,
    /// What becomes of fields that a kind does not have: strict is an error, warn a warning, ignore nothing
    #[arg(long, value_enum, default_value = "strict", num_args = 0..=1, default_missing_value = "strict", require_equals = true, hide_short_help = true)]
    validate: Validation,
    /// Of each object this alone, as status
    #[arg(long, value_name = "SUBRESOURCE", hide_short_help = true)]
    subresource: Option<String>,
    /// Who is noted as the one that wrote
    #[arg(long, default_value = "crowsnest-apply", value_name = "NAME")]
    field_manager: String,
    /// json, yaml, name, jsonpath=TEMPLATE, go-template=TEMPLATE [default: a line for each object]
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::of_an_object)]
    output: Option<Format>,
    /// With metadata.managedFields, in JSON and YAML
    #[arg(long, hide_short_help = true)]
    show_managed_fields: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Who writes, and how.
pub(crate) struct Writing<'a> {
    pub(crate) client: &'a kube::Client,
    pub(crate) dry_run: DryRun,
    pub(crate) force: bool,
    pub(crate) manager: &'a str,
    pub(crate) validation: Validation,
    /// What of an object is written, where that is not all of it.
    pub(crate) subresource: Option<&'a str>,
}

pub(crate) async fn run(args: ApplyArgs) -> anyhow::Result<ExitCode> {
    if args.sources.is_empty() {
        bail!("nothing is named to apply: -f FILE, -f - or -k FOLDER");
    }
    if args.force {
        bail!(
            "--force deletes and creates anew: delete what is in the way, or take fields over with --force-conflicts"
        );
    }
    let selector = args.selector.as_deref();
    let prune = args.prune.wanted(selector)?;
    let mut objects = args.sources.objects().await?;
    if let Some(selector) = selector {
        let selector = Selector::parse(selector).map_err(|why| anyhow!("-l {selector}: {why}"))?;
        objects.retain(|object| selector.matches_with(|label| object["metadata"]["labels"][label].as_str()));
    }
    let config = args.connection.config().await?;
    let default = config.default_namespace.clone();
    let client = kube::Client::try_from(config)?;
    if !args.clusters.is_empty() {
        known(&args.clusters, &ask::clusters(&client).await?)?;
    }
    let writing = Writing {
        client: &client,
        dry_run: args.dry_run,
        force: args.force_conflicts,
        manager: &args.field_manager,
        validation: args.validate,
        subresource: args.subresource.as_deref(),
    };
    let mut served = crowsnest_members::discovery::discover(&client).await?;
    let mut all = Applied::default();
    for mut object in objects {
        if find(&served, &object).is_none() {
            // One of the objects before may have been what defines it.
            served = crowsnest_members::discovery::discover(&client).await?;
        }
        place(&mut object, &served, args.namespace.as_deref(), &default)?;
        let mut wanted = vec![object.clone()];
        if (args.all_clusters || !args.clusters.is_empty()) && is_propagated(&object) {
            wanted.push(policy(&object, &args.clusters, false)?);
        }
        for object in wanted {
            let (mut applied, how) = writing.apply(&served, &object).await?;
            all.note(&applied);
            if !args.show_managed_fields
                && let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut)
            {
                metadata.remove("managedFields");
            }
            let name = named(&served, &applied);
            let mut out = io::stdout().lock();
            match &args.output {
                None => writeln!(out, "{name} {how}{}", writing.suffix())?,
                Some(format) => format.next(&mut out, &applied, true, |_| name.clone())?,
            }
        }
    }
    if prune {
        args.prune.prune(&writing, &served, &all, selector).await?;
    }
    Ok(ExitCode::SUCCESS)
}

fn known(named: &[String], there: &[String]) -> anyhow::Result<()> {
    let missing: Vec<&str> = named.iter().filter(|name| !there.contains(name)).map(String::as_str).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => bail!("cluster {} does not exist; there are: {}", missing.join(", "), there.join(", ")),
    }
}

fn is_propagated(object: &Value) -> bool {
    let group = text(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    !group.ends_with(OURS)
}

/// What puts an object into clusters; into all of them where none is named.
pub(crate) fn policy(object: &Value, clusters: &[String], dependencies: bool) -> anyhow::Result<Value> {
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
    Ok(json!({"apiVersion": POLICIES, "kind": policy_kind, "metadata": metadata, "spec": spec}))
}

fn find<'s>(served: &'s ApiResources, object: &Value) -> Option<&'s ApiResource> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    served.resources.iter().find(|one| one.kind == kind && one.gvr.api_version() == api_version)
}

/// Where an object is served, its name left out.
pub(crate) fn collection(served: &ApiResources, object: &Value) -> anyhow::Result<String> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let known = find(served, object);
    let known = known.ok_or_else(|| anyhow!("no matches for kind {kind:?} in version {api_version:?}"))?;
    Ok(known.gvr.path(known.namespaced.then(|| text(object, "/metadata/namespace"))))
}

/// `deployment.apps/web`
pub(crate) fn named(served: &ApiResources, object: &Value) -> String {
    let group = find(served, object).map(|known| known.gvr.group.to_string()).filter(|group| !group.is_empty());
    let group = group.map(|group| format!(".{group}")).unwrap_or_default();
    format!("{}{group}/{}", text(object, "/kind").to_lowercase(), text(object, "/metadata/name"))
}

impl Writing<'_> {
    pub(crate) fn suffix(&self) -> &'static str {
        match self.dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        }
    }

    /// The object as it is afterwards, and what was done to it.
    async fn apply(&self, served: &ApiResources, object: &Value) -> anyhow::Result<(Value, &'static str)> {
        let path = format!("{}/{}", collection(served, object)?, path_segment(text(object, "/metadata/name")));
        let before = self.read(&path).await?;
        if self.dry_run == DryRun::Client {
            let how = if before.is_some() { "configured" } else { "created" };
            return Ok((object.clone(), how));
        }
        let dry_run = if self.dry_run == DryRun::Server { "&dryRun=All" } else { "" };
        let (force, validation) = (self.force, self.validation.word());
        let of = self.subresource.map(|of| format!("/{}", path_segment(of))).unwrap_or_default();
        let query = format!(
            "fieldManager={}&force={force}&fieldValidation={validation}{dry_run}",
            percent_encoded(self.manager)
        );
        let request = http::Request::patch(format!("{path}{of}?{query}"))
            .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(serde_json::to_vec(object)?))?;
        let applied: Value = match self.send(request).await {
            Ok(applied) => applied,
            Err(kube::Error::Api(status)) if status.code == 409 && !force => {
                bail!("{}: {}; --force-conflicts takes these fields over", named(served, object), status.message)
            }
            Err(error) => bail!("{}: {}", named(served, object), failure(None, &error)),
        };
        let version = |object: &Value| text(object, "/metadata/resourceVersion").to_owned();
        let how = match &before {
            None => "created",
            Some(before) if same(before, &applied) || version(before) == version(&applied) => "unchanged",
            Some(_) => "configured",
        };
        Ok((applied, how))
    }

    /// What is answered; what the server warns of is told.
    async fn send(&self, request: http::Request<Body>) -> Result<Value, kube::Error> {
        let (object, headers) = answered(self.client, request).await?;
        for warning in warnings(&headers) {
            // A closed standard error changes nothing.
            let _ = writeln!(terminal::stderr(), "warning: {warning}");
        }
        Ok(object)
    }

    pub(crate) async fn read(&self, path: &str) -> anyhow::Result<Option<Value>> {
        reach::find(self.client, None, path).await
    }
}

/// But for who wrote and when: what is only looked at gets no new version.
fn same(before: &Value, after: &Value) -> bool {
    let shown = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
        }
        object
    };
    shown(before) == shown(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_karmadactls() {
        let deployment =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}});
        let told = policy(&deployment, &["m1".to_owned()], true).unwrap();
        let expected = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": policy_name("shop", "web", "apps/v1, Kind=Deployment"), "namespace": "shop"},
            "spec": {"placement": {"clusterAffinity": {"clusterNames": ["m1"]}}, "propagateDeps": true,
                "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "shop"}]}});
        assert_eq!(told, expected);
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}});
        let told = policy(&role, &[], false).unwrap();
        assert_eq!(told["kind"], "ClusterPropagationPolicy");
        assert_eq!(told["spec"]["placement"], json!({"clusterAffinity": {}}));
        assert!(is_propagated(&role) && !is_propagated(&told));
    }

    #[test]
    fn clusters_have_to_be_there() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(known(&names(&["m1"]), &names(&["m1", "m2"])).is_ok());
        let error = known(&names(&["m1", "m3"]), &names(&["m1", "m2"])).unwrap_err();
        assert_eq!(error.to_string(), "cluster m3 does not exist; there are: m1, m2");
    }
}
