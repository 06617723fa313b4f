//! `crowsnest promote`: creates a member's object in the control plane, with a policy that keeps it in its cluster, as
//! `karmadactl promote` does; with `-d` also its dependencies.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{ArgAction, Args};
use crowsnest_api::constants::annotation::{CONFLICT_RESOLUTION, CONFLICT_RESOLUTION_OVERWRITE};
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_component_base::kubeconfig;
use crowsnest_interpreter::Interpreter;
use crowsnest_members::ApiResources;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::work::prune::prune;
use serde_json::{Value, json};

use super::apply::{DryRun, ManifestWriter, Validation, build_policy, collection_path, display_name};
use crate::clients::{self, describe_cause};
use crate::connection::ConnectionArgs;
use crate::object::{ObjectArgs, text};
use crate::output::Format;
use crate::output::terminal;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest promote deployment web -n shop -C member1",
    "crowsnest promote deployment/web -n shop -C member1 -d        with its ConfigMaps, Secrets and other dependencies",
    "crowsnest promote deployment/web -n shop -C member1 -o yaml   print the objects only",
])]
pub struct PromoteArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// Member cluster that has the object
    #[arg(short = 'C', long, visible_alias = "clusters", value_name = "CLUSTER")]
    cluster: String,
    /// Kubeconfig file to read the member with [default: through the control plane]
    #[arg(long, value_name = "FILE")]
    cluster_kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: the name of the cluster]
    #[arg(long, requires = "cluster_kubeconfig")]
    cluster_context: Option<String>,
    /// Promote the object's dependencies too, and propagate them with it
    #[arg(short, long)]
    dependencies: bool,
    /// Create a policy that keeps the object in its cluster
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    auto_create_policy: bool,
    /// Name of the policy [default: the name that karmadactl uses]
    #[arg(long, value_name = "NAME")]
    policy_name: Option<String>,
    /// Preview only: create nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the objects instead of creating them: json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE
    #[arg(short, long, value_name = "FORMAT", value_parser = Format::parse_for_object)]
    output: Option<Format>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: PromoteArgs) -> anyhow::Result<ExitCode> {
    let target = args.object.resolve(&args.connection, std::slice::from_ref(&args.cluster)).await?;
    let (member, object) = match &args.cluster_kubeconfig {
        Some(file) => {
            let context = args.cluster_context.as_ref().unwrap_or(&args.cluster);
            let member = kube::Client::try_from(kubeconfig::load_config(Some(file), Some(context)).await?)?;
            let object = match clients::get(&member, &target.path()).await {
                Ok(object) => Some(object),
                Err(kube::Error::Api(status)) if status.code == 404 => None,
                // The connection is direct, so an error does not concern the control plane.
                Err(error) => bail!("cluster {}: {}", args.cluster, describe_cause(&error)),
            };
            (member, object)
        }
        None => {
            let member = clients::member(&target.config, &args.cluster)?;
            let object = target.read(&member, Some(&args.cluster)).await?;
            (member, object)
        }
    };
    let object = object.ok_or_else(|| {
        anyhow!(
            "cluster {} has no {}: `crowsnest search 'name:={}'` finds the clusters that have it",
            args.cluster,
            target.display_name(),
            target.name
        )
    })?;
    let api_resources = crowsnest_members::discovery::discover(&target.control_plane).await?;
    let template = to_template(object);
    let mut objects = vec![template.clone()];
    if args.dependencies {
        objects.extend(dependencies(&template, &member, &api_resources).await?);
    }
    let policy = args.auto_create_policy.then(|| args.policy(&template)).transpose()?;
    if let Some(format) = &args.output {
        let mut out = terminal::stdout();
        for document in objects.iter().chain(&policy) {
            format.print_next(&mut out, document, true, |object| display_name(&api_resources, object))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let dry_run = if args.dry_run { DryRun::Client } else { DryRun::None };
    let writer = ManifestWriter {
        client: &target.control_plane,
        dry_run,
        force: false,
        manager: "crowsnest-promote",
        validation: Validation::Strict,
        subresource: None,
    };
    promote(&writer, &api_resources, &objects, policy.as_ref()).await
}

impl PromoteArgs {
    fn policy(&self, template: &Value) -> anyhow::Result<Value> {
        let mut document = build_policy(template, std::slice::from_ref(&self.cluster), self.dependencies)?;
        if let Some(name) = &self.policy_name {
            document["metadata"]["name"] = name.as_str().into();
        }
        Ok(document)
    }
}

/// Converts a member's object to a template: removes member-specific fields and sets conflict resolution `overwrite`,
/// so that propagation adopts the members' objects.
fn to_template(mut object: Value) -> Value {
    prune(&mut object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if annotations.get(CONFLICT_RESOLUTION).is_none() {
            annotations[CONFLICT_RESOLUTION] = CONFLICT_RESOLUTION_OVERWRITE.into();
        }
    }
    object
}

/// Reads the objects that a template depends on from its member, as templates.
async fn dependencies(
    template: &Value,
    member: &kube::Client,
    api_resources: &ApiResources,
) -> anyhow::Result<Vec<Value>> {
    let references =
        Interpreter::new(Gates::default()).dependencies(template).await.context("cannot determine the dependencies")?;
    let references = serde_json::to_value(references)?;
    let mut dependencies = Vec::new();
    for dependency in references.as_array().into_iter().flatten() {
        let reference = json!({"apiVersion": dependency["apiVersion"], "kind": dependency["kind"],
            "metadata": {"name": dependency["name"], "namespace": dependency["namespace"]}});
        let collection = collection_path(api_resources, &reference)?;
        let objects = match text(dependency, "/name") {
            "" => list(member, &collection, &dependency["labelSelector"]).await?,
            name => read(member, &format!("{collection}/{}", path_segment(name))).await?.into_iter().collect(),
        };
        for mut object in objects {
            // Items of a list omit apiVersion and kind.
            object["apiVersion"] = dependency["apiVersion"].clone();
            object["kind"] = dependency["kind"].clone();
            dependencies.push(to_template(object));
        }
    }
    Ok(dependencies)
}

async fn read(client: &kube::Client, path: &str) -> anyhow::Result<Option<Value>> {
    clients::find(client, None, path).await.context("cannot read the dependencies")
}

async fn list(client: &kube::Client, collection: &str, selector: &Value) -> anyhow::Result<Vec<Value>> {
    let selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector =
        serde_json::from_value(selector.clone()).context("cannot read the label selector of a dependency")?;
    let selector =
        kube::core::Selector::try_from(selector).context("cannot read the label selector of a dependency")?;
    let path = format!("{collection}?labelSelector={}", percent_encode(&selector.to_string()));
    let list = read(client, &path).await?.unwrap_or_default();
    Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
}

/// Creates all objects or none: if one fails, those created before are deleted.
async fn promote(
    writer: &ManifestWriter<'_>,
    api_resources: &ApiResources,
    objects: &[Value],
    policy: Option<&Value>,
) -> anyhow::Result<ExitCode> {
    let (suffix, mut created) = (writer.dry_run_suffix(), Vec::new());
    for (index, object) in objects.iter().chain(policy).enumerate() {
        let path = collection_path(api_resources, object)?;
        let name = display_name(api_resources, object);
        let object_path = format!("{path}/{}", path_segment(text(object, "/metadata/name")));
        if writer.read(&object_path).await?.is_some() {
            writeln!(
                terminal::stderr(),
                "note: {name} already exists in the control plane; its policies and overrides apply"
            )?;
            match index {
                // The promoted object itself exists, so its dependencies are not promoted either.
                0 => return Ok(ExitCode::SUCCESS),
                _ => continue,
            }
        }
        if writer.dry_run == DryRun::None
            && let Err(error) = create(writer.client, &path, object).await
        {
            let cleanup = delete_created(writer.client, &created).await;
            let namespace = text(object, "/metadata/namespace");
            let hint = match &error {
                kube::Error::Api(status) if status.code == 404 && !namespace.is_empty() => {
                    format!(
                        "; if namespace {namespace} is missing, create it with `crowsnest promote namespace/{namespace}`"
                    )
                }
                _ => String::new(),
            };
            bail!("cannot create {name} in the control plane: {}{hint}{cleanup}", describe_cause(&error));
        }
        created.push(object_path);
        let action = if index < objects.len() { "promoted" } else { "created" };
        writeln!(terminal::stdout(), "{name} {action}{suffix}")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(client: &kube::Client, path: &str, object: &Value) -> Result<(), kube::Error> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json").body(body);
    client.request::<Value>(request.map_err(kube::Error::HttpError)?).await.map(drop)
}

/// Deletes the created objects; returns the part of the error message that lists those that remain.
async fn delete_created(client: &kube::Client, created: &[String]) -> String {
    let mut remaining = Vec::new();
    for path in created.iter().rev() {
        let request = http::Request::delete(path).body(Vec::new()).map_err(kube::Error::HttpError);
        let result = match request {
            Ok(request) => client.request::<Value>(request).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            remaining.push(format!("{path} ({})", describe_cause(&error)));
        }
    }
    match (created.is_empty(), remaining.is_empty()) {
        (true, _) => String::new(),
        (false, true) => "; objects created before were deleted".to_owned(),
        (false, false) => format!("; delete these objects, which were created before: {}", remaining.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(json!({}), "overwrite")]
    #[case(json!({"work.karmada.io/conflict-resolution": "abort"}), "abort")]
    fn templates_overwrite_existing_objects(#[case] annotations: Value, #[case] expected: &str) {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "status": {"replicas": 1},
            "metadata": {"name": "web", "uid": "1", "resourceVersion": "7", "annotations": annotations}});
        let template = to_template(object);
        assert_eq!(template["metadata"]["annotations"]["work.karmada.io/conflict-resolution"], expected);
        assert!(template.get("status").is_none() && template["metadata"].get("uid").is_none(), "{template}");
    }
}
