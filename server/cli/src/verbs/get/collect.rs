//! Selects the sources of a request and collects their responses: the fleet-wide proxy if its output is sufficient,
//! otherwise its members, and the control plane if selected.

use std::io::Write;

use anyhow::{anyhow, bail};
use kube::core::Status;

use super::requests::{self, GetRequest, GetResponse, Source};
use super::{CONTROL_PLANE, GetArgs, Scope};
use crate::clients::{self, explain_failure};
use crate::object::is_cluster_error;
use crate::output::terminal;

/// Next step for a name that exists in several clusters.
const CHOICE_HINT: &str = "choose one with --cluster, or all of them with --clusters all";

/// A request with its scope and output options.
pub(super) struct PendingGet<'a> {
    pub(super) args: &'a GetArgs,
    pub(super) config: &'a kube::Config,
    pub(super) control_plane: &'a kube::Client,
    pub(super) scope: &'a Scope,
    pub(super) request: GetRequest,
}

/// Collected responses.
pub(super) struct Responses {
    pub(super) sources: Vec<Source>,
    /// Successful responses, in the order of the sources.
    pub(super) successes: Vec<(Source, GetResponse)>,
    /// True if a source failed, or shows outdated objects.
    pub(super) is_partial: bool,
}

impl PendingGet<'_> {
    /// True if the fleet-wide proxy can serve the request; its tables of other groups have the name column only.
    fn can_use_fleet_proxy(&self) -> bool {
        *self.scope == Scope::Fleet && (!self.request.as_table || self.request.kind.gvr.group.is_empty())
    }

    pub(super) async fn collect_responses(&self) -> anyhow::Result<Responses> {
        if self.can_use_fleet_proxy() {
            let source = Source { cluster: None, client: clients::fleet(self.config)? };
            match self.request.send(&source).await {
                Ok(response) if response.is_fleet_wide() => {
                    let is_partial = response.incomplete_clusters > 0;
                    return Ok(Responses {
                        sources: vec![source.clone()],
                        successes: vec![(source, response)],
                        is_partial,
                    });
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    bail!("{}: {CHOICE_HINT}", status.message);
                }
                // Without a ResourceRegistry, in an unsynced cache, or for callers with access to single members only,
                // the members are requested instead.
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {}
                Err(error) => return Err(anyhow!("{}", explain_failure(None, &error))),
            }
        }
        self.request_members().await
    }

    async fn request_members(&self) -> anyhow::Result<Responses> {
        let clusters = match self.scope {
            Scope::Named(named) => named.clone(),
            Scope::ControlPlane(Some(named)) => named.clone(),
            _ => requests::list_clusters(self.control_plane).await?,
        };
        let source = |cluster: &String| {
            Ok(Source { cluster: Some(cluster.clone()), client: clients::member(self.config, cluster)? })
        };
        let mut sources: Vec<Source> = clusters.iter().map(source).collect::<anyhow::Result<_>>()?;
        if matches!(self.scope, Scope::ControlPlane(_)) {
            sources.insert(0, Source { cluster: Some(CONTROL_PLANE.to_owned()), client: self.control_plane.clone() });
        }
        let results = self.request.send_to_all(&sources).await;
        let (mut successes, mut failed_sources, mut missing) = (Vec::new(), Vec::new(), None);
        for (source, result) in sources.iter().zip(results) {
            match result {
                Ok(response) => successes.push((source.clone(), response)),
                // A cluster without the object or its kind is not an error. The response of one that serves the kind is
                // preferred.
                Err(kube::Error::Api(status)) if status.code == 404 && !is_cluster_error(&status) => {
                    if missing.is_none() || !is_kind_unserved(&status) {
                        missing = Some(status);
                    }
                }
                Err(error) => failed_sources.push((source.cluster.clone().unwrap_or_default(), error)),
            }
        }
        let is_single_source = match self.scope {
            Scope::Named(named) => named.len() == 1,
            scope => *scope == Scope::ControlPlane(Some(Vec::new())),
        };
        if let [(cluster, error)] = failed_sources.as_slice()
            && is_single_source
        {
            bail!(
                "{}",
                explain_failure(Some(cluster).filter(|cluster| *cluster != CONTROL_PLANE).map(String::as_str), error)
            );
        }
        let mut err = terminal::stderr();
        for (cluster, error) in &failed_sources {
            writeln!(err, "warning: {cluster}: {}", clients::describe_cause(error))?;
        }
        let is_partial = !failed_sources.is_empty();
        if successes.is_empty() && !sources.is_empty() {
            let left_out = failed_sources.into_iter().map(|(cluster, _)| cluster).collect::<Vec<_>>().join(", ");
            let kind = self.request.kind.name();
            let missing = missing.map(|status| explain_missing(self.scope, is_single_source, &kind, status));
            return match (missing, is_partial) {
                (Some(_), _) if self.args.ignore_not_found => Ok(Responses { sources, successes, is_partial }),
                (Some(missing), false) => Err(anyhow!("{missing}")),
                (Some(missing), true) => Err(anyhow!("{missing}; results from {left_out} are incomplete")),
                (None, _) => Err(anyhow!("no cluster returned a result: {left_out}")),
            };
        }
        if let (Scope::Fleet, Some(name), [_, _, ..]) = (self.scope, &self.request.name, successes.as_slice()) {
            let clusters: Vec<&str> = successes.iter().filter_map(|(source, _)| source.cluster.as_deref()).collect();
            let kind = self.request.kind.name();
            bail!("{kind} {name:?} is in clusters [{}]; {CHOICE_HINT}", clusters.join(", "));
        }
        Ok(Responses { sources, successes, is_partial })
    }
}

/// True for a 404 of a server that does not serve the kind: kube-apiserver responds with a text, or with a status that
/// names no object.
fn is_kind_unserved(status: &Status) -> bool {
    status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

/// Explains that the only source, or all sources, responded with 404.
pub(super) fn explain_missing(scope: &Scope, is_single_source: bool, kind: &str, status: Box<Status>) -> String {
    let is_unserved = is_kind_unserved(&status);
    let error = kube::Error::Api(status);
    match (scope, is_single_source) {
        (_, false) if is_unserved => format!("no cluster serves {kind}"),
        (_, false) => format!("no cluster has it: {}", explain_failure(None, &error)),
        (Scope::Named(named), true) if is_unserved => format!("{} does not serve {kind}", named.join(", ")),
        (Scope::Named(named), true) => explain_failure(named.first().map(String::as_str), &error),
        (_, true) if is_unserved => format!("the control plane does not serve {kind}"),
        (_, true) => format!("control plane: {}", explain_failure(None, &error)),
    }
}
