//! `apply --prune`: deletes objects that the same field manager applied before and that are no longer in the files,
//! with the policies that `apply -C` created for them.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use crowsnest_apimachinery::request::{path_segment, percent_encode};
use crowsnest_members::{ApiResource, ApiResources};
use serde_json::{Value, json};

use super::{DryRun, ManifestWriter, build_policy, collection_path, display_name, is_propagated};
use crate::clients::{self, explain_failure};
use crate::duration::parse_duration;
use crate::object::text;
use crate::output::terminal;

/// Default kinds to prune, as in kubectl.
const DEFAULT_KINDS: [&str; 16] = [
    "core/v1/ConfigMap",
    "core/v1/Endpoints",
    "core/v1/Namespace",
    "core/v1/PersistentVolumeClaim",
    "core/v1/PersistentVolume",
    "core/v1/Pod",
    "core/v1/ReplicationController",
    "core/v1/Secret",
    "core/v1/Service",
    "batch/v1/Job",
    "batch/v1/CronJob",
    "networking.k8s.io/v1/Ingress",
    "apps/v1/DaemonSet",
    "apps/v1/Deployment",
    "apps/v1/ReplicaSet",
    "apps/v1/StatefulSet",
];
/// Interval between checks for the end of a deletion.
const DELETION_POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cascade {
    Background,
    Foreground,
    Orphan,
}

#[derive(Debug, Args)]
pub(super) struct PruneArgs {
    /// Delete objects that were applied before, match -l and are no longer in the files, from the control plane and all
    /// clusters
    #[arg(long)]
    prune: bool,
    /// With --prune: consider all objects, regardless of labels
    #[arg(long, conflicts_with = "selector")]
    all: bool,
    /// With --prune: kinds to consider, as GROUP/VERSION/KIND; may be repeated [default: kubectl's list]
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    prune_allowlist: Vec<String>,
    /// With --prune: deletion propagation for dependents
    #[arg(long, value_enum, default_value = "background", num_args = 0..=1, default_missing_value = "background", require_equals = true, hide_short_help = true)]
    cascade: Cascade,
    /// With --prune: termination grace period of pods in seconds; -1 uses the pod's own
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true, hide_short_help = true)]
    grace_period: i64,
    /// With --prune: wait until the objects are deleted
    #[arg(long, hide_short_help = true)]
    wait: bool,
    /// Maximum time to wait, with --wait
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration, hide_short_help = true)]
    timeout: Duration,
}

/// UIDs and namespaces of the objects applied by this run.
#[derive(Debug, Default)]
pub(super) struct AppliedObjects {
    uids: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

impl AppliedObjects {
    pub(super) fn record(&mut self, object: &Value) {
        self.uids.insert(text(object, "/metadata/uid").to_owned());
        let namespace = text(object, "/metadata/namespace");
        if !namespace.is_empty() {
            self.namespaces.insert(namespace.to_owned());
        }
    }
}

impl PruneArgs {
    /// True if pruning is requested; an error for invalid combinations of flags.
    pub(super) fn is_requested(&self, selector: Option<&str>) -> anyhow::Result<bool> {
        match (self.prune, self.all || selector.is_some()) {
            (true, false) => {
                bail!("--prune requires a label selector (-l KEY=VALUE) or --all")
            }
            (false, _) if self.all => bail!("--all requires --prune"),
            (prune, _) => Ok(prune),
        }
    }

    /// Deletes the objects that are no longer applied.
    pub(super) async fn prune(
        &self,
        writer: &ManifestWriter<'_>,
        served: &ApiResources,
        applied: &AppliedObjects,
        selector: Option<&str>,
    ) -> anyhow::Result<()> {
        let mut deleted_paths = Vec::new();
        for kind in self.kinds(served)? {
            let namespaces: Vec<Option<&str>> = match kind.namespaced {
                true => applied.namespaces.iter().map(|namespace| Some(namespace.as_str())).collect(),
                false => vec![None],
            };
            for namespace in namespaces {
                let selected =
                    selector.map(|labels| format!("?labelSelector={}", percent_encode(labels))).unwrap_or_default();
                let path = format!("{}{selected}", kind.gvr.path(namespace));
                let Some(list) = clients::find(writer.client, None, &path).await? else { continue };
                for item in list.get("items").and_then(Value::as_array).into_iter().flatten() {
                    if !is_obsolete(item, writer.manager, applied) {
                        continue;
                    }
                    let mut object = item.clone();
                    // Items of a list omit apiVersion and kind.
                    object["apiVersion"] = kind.gvr.api_version().into();
                    object["kind"] = kind.kind.as_str().into();
                    deleted_paths.extend(self.delete(writer, served, &object).await?);
                }
            }
        }
        if self.wait && writer.dry_run == DryRun::None {
            self.wait_for_deletion(writer, &deleted_paths).await?;
        }
        Ok(())
    }

    /// The kinds to consider. Default kinds that the control plane does not serve are skipped.
    fn kinds<'s>(&self, served: &'s ApiResources) -> anyhow::Result<Vec<&'s ApiResource>> {
        let find = |argument: &str| {
            let (api_version, kind) = argument.rsplit_once('/')?;
            let api_version = api_version.strip_prefix("core/").unwrap_or(api_version);
            served.resources.iter().find(|resource| resource.kind == kind && resource.gvr.api_version() == api_version)
        };
        if self.prune_allowlist.is_empty() {
            return Ok(DEFAULT_KINDS.iter().filter_map(|kind| find(kind)).collect());
        }
        let kinds = self.prune_allowlist.iter().map(|kind| {
            find(kind).ok_or_else(|| {
                anyhow!("invalid kind {kind:?}: expected a served GROUP/VERSION/KIND, such as apps/v1/Deployment")
            })
        });
        kinds.collect()
    }

    /// Deletes an object after the policy that propagates it; returns the paths of both.
    async fn delete(
        &self,
        writer: &ManifestWriter<'_>,
        served: &ApiResources,
        object: &Value,
    ) -> anyhow::Result<Vec<String>> {
        let mut deletions = Vec::new();
        if is_propagated(object) {
            let policy = build_policy(object, &[], false)?;
            let path =
                format!("{}/{}", collection_path(served, &policy)?, path_segment(text(&policy, "/metadata/name")));
            let existing = clients::find(writer.client, None, &path).await?;
            deletions
                .extend(existing.filter(|policy| is_applied_by(policy, writer.manager)).map(|policy| (path, policy)));
        }
        let path = format!("{}/{}", collection_path(served, object)?, path_segment(text(object, "/metadata/name")));
        deletions.push((path, object.clone()));
        for (path, object) in &deletions {
            if writer.dry_run != DryRun::Client {
                let request = http::Request::delete(path.as_str())
                    .header(http::header::CONTENT_TYPE, "application/json")
                    .body(serde_json::to_vec(&self.delete_options(writer, object))?)?;
                match writer.client.request::<Value>(request).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if status.code == 404 => continue,
                    Err(error) => {
                        bail!("cannot delete {}: {}", display_name(served, object), explain_failure(None, &error))
                    }
                }
            }
            writeln!(terminal::stdout(), "{} pruned{}", display_name(served, object), writer.dry_run_suffix())?;
        }
        Ok(deletions.into_iter().map(|(path, _)| path).collect())
    }

    fn delete_options(&self, writer: &ManifestWriter<'_>, object: &Value) -> Value {
        let propagation = match self.cascade {
            Cascade::Background => "Background",
            Cascade::Foreground => "Foreground",
            Cascade::Orphan => "Orphan",
        };
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation,
            "preconditions": {"uid": text(object, "/metadata/uid")}});
        if self.grace_period >= 0 {
            options["gracePeriodSeconds"] = self.grace_period.into();
        }
        if writer.dry_run == DryRun::Server {
            options["dryRun"] = json!(["All"]);
        }
        options
    }

    async fn wait_for_deletion(&self, writer: &ManifestWriter<'_>, deleted_paths: &[String]) -> anyhow::Result<()> {
        let polling = async {
            for path in deleted_paths {
                while clients::find(writer.client, None, path).await?.is_some() {
                    tokio::time::sleep(DELETION_POLL_INTERVAL).await;
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(self.timeout, polling).await.unwrap_or_else(|_| {
            Err(anyhow!(
                "timed out after {} s waiting for deletion; check the finalizers of the pruned objects",
                self.timeout.as_secs()
            ))
        })
    }
}

/// True if the field manager applied the object before and this run did not.
fn is_obsolete(object: &Value, manager: &str, applied: &AppliedObjects) -> bool {
    object["metadata"].get("deletionTimestamp").is_none()
        && !applied.uids.contains(text(object, "/metadata/uid"))
        && is_applied_by(object, manager)
}

fn is_applied_by(object: &Value, manager: &str) -> bool {
    let mut fields = object.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    fields
        .any(|entry| entry["manager"] == manager && entry["operation"] == "Apply" && entry.get("subresource").is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[arg(short = 'l', long)]
        selector: Option<String>,
        #[command(flatten)]
        prune: PruneArgs,
    }

    #[rstest::rstest]
    #[case("", Ok(false))]
    #[case("--prune --all", Ok(true))]
    #[case("--prune -l app=web", Ok(true))]
    #[case("-l app=web", Ok(false))]
    #[case("--prune", Err("requires a label selector (-l KEY=VALUE) or --all"))]
    #[case("--all", Err("--all requires --prune"))]
    fn prune_requires_a_selection(#[case] line: &str, #[case] expected: Result<bool, &str>) {
        let args = TestArgs::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap();
        match (args.prune.is_requested(args.selector.as_deref()), expected) {
            (Ok(requested), Ok(expected)) => assert_eq!(requested, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (requested, _) => panic!("{line}: {requested:?}"),
        }
    }

    #[rstest::rstest]
    #[case::no_longer_in_the_files(json!({"uid": "2", "managedFields": [{"manager": "us", "operation": "Apply"}]}), true)]
    #[case::applied_again(json!({"uid": "1", "managedFields": [{"manager": "us", "operation": "Apply"}]}), false)]
    #[case::other_manager(json!({"uid": "2", "managedFields": [{"manager": "them", "operation": "Apply"}]}), false)]
    #[case::only_updated(json!({"uid": "2", "managedFields": [{"manager": "us", "operation": "Update"}]}), false)]
    #[case::status_only(json!({"uid": "2", "managedFields": [{"manager": "us", "operation": "Apply", "subresource": "status"}]}), false)]
    #[case::terminating(json!({"uid": "2", "deletionTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "us", "operation": "Apply"}]}), false)]
    fn only_objects_of_the_field_manager_are_pruned(#[case] metadata: Value, #[case] expected: bool) {
        let mut applied = AppliedObjects::default();
        applied.record(&json!({"metadata": {"uid": "1", "namespace": "shop"}}));
        assert_eq!(is_obsolete(&json!({"metadata": metadata}), "us", &applied), expected);
    }
}
