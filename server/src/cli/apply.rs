//! `crowsnest apply`: objects of files as they should be in the control plane, by server-side apply; with clusters also a policy for each,
//! named as `karmadactl apply` names it.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use crowsnest_api::names::{Gvk, policy_name};
use crowsnest_fleet::{ApiResource, ApiResources};
use serde_json::{Value, json};

use super::connection::ConnectionArgs;
use super::get::ask;
use super::interpret::files;
use super::kubectl;
use super::object::{escaped, text};
use super::output::Format;
use super::plan::place;
use super::reach::said;

const POLICIES: &str = "policy.karmada.io/v1alpha1";
/// Kinds of these are for the control plane: nothing propagates them.
const OURS: &str = ".karmada.io";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// Write
    None,
    /// Ask nobody to
    Client,
    /// Have the control plane look at it
    Server,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest apply -f web.yaml                        in the control plane alone\n  crowsnest apply -f web.yaml -C member1,member2     and a policy that puts it there\n  crowsnest apply -f manifests/ -R --all-clusters --dry-run=server\n  crowsnest apply -k overlays/prod --all-clusters\n  crowsnest plan -f web.yaml                         what would become of the fleet"
)]
pub(crate) struct ApplyArgs {
    /// Files, patterns of them (in quotes), folders or URLs, - for standard input
    #[arg(
        short = 'f',
        long = "filename",
        value_name = "FILE",
        value_delimiter = ',',
        required_unless_present = "kustomize"
    )]
    filenames: Vec<String>,
    /// What `kubectl kustomize` makes of this folder or URL
    #[arg(short = 'k', long, value_name = "FOLDER", conflicts_with_all = ["filenames", "recursive"])]
    kustomize: Option<String>,
    /// Folders named with -f, and those in them
    #[arg(short = 'R', long)]
    recursive: bool,
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
    /// Refused
    #[arg(long, hide = true)]
    prune: bool,
    /// Who is noted as the one that wrote
    #[arg(long, default_value = "crowsnest-apply", value_name = "NAME")]
    field_manager: String,
    /// json, yaml, name, jsonpath=TEMPLATE, go-template=TEMPLATE [default: a line for each object]
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::of_an_object)]
    output: Option<Format>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Who writes, and how.
pub(super) struct Writing<'a> {
    pub(super) client: &'a kube::Client,
    pub(super) dry_run: DryRun,
    pub(super) force: bool,
    pub(super) manager: &'a str,
}

pub(crate) async fn run(args: ApplyArgs) -> anyhow::Result<ExitCode> {
    if args.prune {
        bail!(
            "--prune is not known: what it deletes here would go from all clusters; `crowsnest search label:KEY=VALUE` shows what there is, `crowsnest delete` deletes it"
        );
    }
    let documents = match &args.kustomize {
        Some(folder) => {
            let made = kubectl::output(&["kustomize", folder]).await;
            files::parse(
                folder,
                None,
                made.context("-k is kubectl's: `kubectl kustomize FOLDER | crowsnest apply -f -`")?,
            )?
        }
        None => files::read(&args.filenames, args.recursive).await?,
    };
    let objects = flattened(documents.into_iter().map(|document| (document.source, document.body)))?;
    let config = args.connection.config().await?;
    let default = config.default_namespace.clone();
    let client = kube::Client::try_from(config)?;
    if !args.clusters.is_empty() {
        known(&args.clusters, &ask::clusters(&client).await?)?;
    }
    let writing =
        Writing { client: &client, dry_run: args.dry_run, force: args.force_conflicts, manager: &args.field_manager };
    let mut served = crowsnest_fleet::discovery::discover(&client).await?;
    for mut object in objects {
        if find(&served, &object).is_none() {
            // One of the objects before may have been what defines it.
            served = crowsnest_fleet::discovery::discover(&client).await?;
        }
        place(&mut object, &served, args.namespace.as_deref(), &default)?;
        let mut wanted = vec![object.clone()];
        if (args.all_clusters || !args.clusters.is_empty()) && is_propagated(&object) {
            wanted.push(policy(&object, &args.clusters, false)?);
        }
        for object in wanted {
            let (applied, how) = writing.apply(&served, &object).await?;
            let name = named(&served, &applied);
            let mut out = io::stdout().lock();
            match &args.output {
                None => writeln!(out, "{name} {how}{}", writing.suffix())?,
                Some(format) => format.next(&mut out, &applied, true, |_| name.clone())?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Objects one by one; lists are taken apart.
fn flattened(documents: impl Iterator<Item = (String, Value)>) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (source, body) in documents {
        let items = match body.get("items").and_then(Value::as_array) {
            Some(items) if text(&body, "/kind").ends_with("List") => items.clone(),
            _ => vec![body],
        };
        for object in items {
            for field in ["/apiVersion", "/kind", "/metadata/name"] {
                if text(&object, field).is_empty() {
                    bail!("{source} has something that is no object: {} is missing", field[1..].replace('/', "."));
                }
            }
            objects.push(object);
        }
    }
    if objects.is_empty() {
        bail!("no objects passed to apply");
    }
    Ok(objects)
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
pub(super) fn policy(object: &Value, clusters: &[String], dependencies: bool) -> anyhow::Result<Value> {
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
pub(super) fn collection(served: &ApiResources, object: &Value) -> anyhow::Result<String> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let known = find(served, object);
    let known = known.ok_or_else(|| anyhow!("no matches for kind {kind:?} in version {api_version:?}"))?;
    Ok(known.gvr.path(known.namespaced.then(|| text(object, "/metadata/namespace"))))
}

/// `deployment.apps/web`
pub(super) fn named(served: &ApiResources, object: &Value) -> String {
    let group = find(served, object).map(|known| known.gvr.group.to_string()).filter(|group| !group.is_empty());
    let group = group.map(|group| format!(".{group}")).unwrap_or_default();
    format!("{}{group}/{}", text(object, "/kind").to_lowercase(), text(object, "/metadata/name"))
}

impl Writing<'_> {
    pub(super) fn suffix(&self) -> &'static str {
        match self.dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        }
    }

    /// The object as it is afterwards, and what was done to it.
    async fn apply(&self, served: &ApiResources, object: &Value) -> anyhow::Result<(Value, &'static str)> {
        let path = format!("{}/{}", collection(served, object)?, escaped(text(object, "/metadata/name")));
        let before = self.read(&path).await?;
        if self.dry_run == DryRun::Client {
            let how = if before.is_some() { "configured" } else { "created" };
            return Ok((object.clone(), how));
        }
        let dry_run = if self.dry_run == DryRun::Server { "&dryRun=All" } else { "" };
        let force = self.force;
        let query = format!("fieldManager={}&force={force}{dry_run}", escaped(self.manager));
        let request = http::Request::patch(format!("{path}?{query}"))
            .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
            .header(http::header::ACCEPT, "application/json")
            .body(serde_json::to_vec(object)?)?;
        let applied: Value = match self.client.request(request).await {
            Ok(applied) => applied,
            Err(kube::Error::Api(status)) if status.code == 409 && !force => {
                bail!("{}: {}; --force-conflicts takes these fields over", named(served, object), status.message)
            }
            Err(error) => bail!("{}: {}", named(served, object), said(&error)),
        };
        let version = |object: &Value| text(object, "/metadata/resourceVersion").to_owned();
        let how = match &before {
            None => "created",
            Some(before) if same(before, &applied) || version(before) == version(&applied) => "unchanged",
            Some(_) => "configured",
        };
        Ok((applied, how))
    }

    pub(super) async fn read(&self, path: &str) -> anyhow::Result<Option<Value>> {
        let request = http::Request::get(path).header(http::header::ACCEPT, "application/json").body(Vec::new())?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(anyhow!("{}", said(&error))),
        }
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

    #[rstest::rstest]
    #[case(json!({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]}), Ok(1))]
    #[case(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), Ok(1))]
    #[case(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}}), Err("a.yaml has something that is no object: metadata.name is missing"))]
    #[case(json!({"kind": "Pod"}), Err("apiVersion is missing"))]
    #[case(json!({"apiVersion": "v1", "kind": "List", "items": []}), Err("no objects passed to apply"))]
    fn lists_are_taken_apart(#[case] body: Value, #[case] expected: Result<usize, &str>) {
        match (flattened([("a.yaml".to_owned(), body)].into_iter()), expected) {
            (Ok(objects), Ok(expected)) => assert_eq!(objects.len(), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (objects, _) => panic!("{objects:?}"),
        }
    }

    #[test]
    fn clusters_have_to_be_there() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(known(&names(&["m1"]), &names(&["m1", "m2"])).is_ok());
        let error = known(&names(&["m1", "m3"]), &names(&["m1", "m2"])).unwrap_err();
        assert_eq!(error.to_string(), "cluster m3 does not exist; there are: m1, m2");
    }
}
